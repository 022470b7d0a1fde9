"""One table of errno codes."""

from __future__ import annotations

import errno
import os

import pytest

from ckpt_observe.errors import AccessError, CapacityError, CheckpointError, ConflictError, LocationError, StorageError, UnavailableError
from ckpt_observe.semconv.values import ERROR_CODES
from ckpt_observe.support import errnos
from ckpt_observe.support.advice import ADVICE
from ckpt_observe.support.errnos import ERROR_CODES_BY_ERRNO, to_checkpoint_error, translate_os_errors


@pytest.mark.parametrize("number", errnos._TABLE, ids=errno.errorcode.get)
def test_rows_agree_with_the_registry_of_codes(number):
    """Class and retryability of a store's exception are those of its code."""
    error_type, code, retryable = errnos._TABLE[number]
    assert (error_type.error_class, retryable) == (ERROR_CODES[code].error_class, ERROR_CODES[code].retryable)


def test_every_code_is_registered():
    """Also the codes of other libraries' errors."""
    assert set(ERROR_CODES_BY_ERRNO.values()) <= set(ERROR_CODES)


@pytest.mark.parametrize(
    ("number", "error_type", "code", "retryable"),
    [
        (errno.ENOSPC, CapacityError, "storage.no_space", False),
        (errno.ESTALE, StorageError, "storage.io", True),
        (errno.ENOTCONN, UnavailableError, "unavailable.connection", True),
        (errno.EPIPE, UnavailableError, "unavailable.connection", True),
        (errno.ENETUNREACH, UnavailableError, "unavailable.connection", True),
        (errno.EHOSTUNREACH, UnavailableError, "unavailable.connection", True),
        (errno.ELOOP, AccessError, "storage.permission", False),
        (errno.ENOTDIR, LocationError, "configuration.invalid", False),
        (errno.EISDIR, LocationError, "configuration.invalid", False),
        (errno.ENAMETOOLONG, LocationError, "configuration.invalid", False),
        (errno.EAGAIN, ConflictError, "conflict.locked", True),
        (errno.ENOENT, StorageError, "storage.io", True),
        (errno.EXDEV, StorageError, "storage.io", True),
    ],
)
def test_exceptions_of_a_store(number, error_type, code, retryable):
    """What a store raises for an error of the operating system, with the system's message."""
    error = to_checkpoint_error(OSError(number, os.strerror(number)), "saving")
    assert (type(error), error.code, error.retryable) == (error_type, code, retryable)
    assert str(error) == f"saving: {os.strerror(number)}. {ADVICE[code]}"


def test_errors_of_a_block_are_translated():
    """The original is the cause; other exceptions pass through."""
    with pytest.raises(CheckpointError, match="reading: full") as caught, translate_os_errors("reading"):
        raise OSError(errno.ENOSPC, "full")
    assert isinstance(caught.value.__cause__, OSError)
    with pytest.raises(KeyError), translate_os_errors("reading"):
        raise KeyError
