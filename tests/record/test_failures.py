"""Classification of exceptions."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import gzip
import json
import pickle
import zlib

import msgspec
import pytest

from ckpt_observe import errors
from ckpt_observe.record.failures import classify
from ckpt_observe.semconv.values import ERROR_CLASSES, ERROR_CODES


def with_subclasses(error_type):
    return [error_type, *(each for subclass in error_type.__subclasses__() for each in with_subclasses(subclass))]


def test_classes_are_closed():
    """The classes of all codes are exactly the registered classes."""
    assert {row.error_class for row in ERROR_CODES.values()} == set(ERROR_CLASSES)


@pytest.mark.parametrize("error_type", [*with_subclasses(errors.CheckpointError), *with_subclasses(errors.ConfigError)])
def test_our_errors(error_type):
    """Each of our errors has a registered class and code, and they agree."""
    assert error_type.error_class in ERROR_CLASSES
    assert ERROR_CODES[error_type.code].error_class == error_type.error_class
    error = error_type("feature", "extra") if error_type is errors.MissingExtraError else error_type("what")
    failure = classify(error)
    assert (failure.error_class, failure.code, failure.retryable) == (error_type.error_class, error_type.code, error_type.retryable)


@pytest.mark.parametrize("code", ERROR_CODES.keys() - {"unknown.exception"})
def test_code_of_the_exception(code):
    """A code that an exception carries has precedence over the tables."""

    class OddError(OSError):
        pass

    error = OddError(errno.ENOSPC, "x")
    error.code = code
    failure = classify(error)
    assert (failure.code, failure.error_class) == (code, ERROR_CODES[code].error_class)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "full"), "storage.no_space"),
        (OSError(errno.EROFS, "ro"), "storage.read_only"),
        (OSError("no errno"), "storage.io"),
        (FileNotFoundError(errno.ENOENT, "x"), "not_found.path"),
        (PermissionError("p"), "storage.permission"),
        (ConnectionResetError(), "unavailable.connection"),
        (TimeoutError(), "timeout.deadline"),
        (asyncio.CancelledError(), "cancelled.requested"),
        (concurrent.futures.CancelledError(), "cancelled.requested"),
        (MemoryError(), "memory.exhausted"),
        (RecursionError(), "serialization.unsupported_type"),
        (json.JSONDecodeError("x", "", 0), "serialization.malformed"),
        (msgspec.DecodeError(), "serialization.malformed"),
        (pickle.PicklingError(), "serialization.unsupported_type"),
        (zlib.error(), "compression.malformed"),
        (gzip.BadGzipFile(), "compression.malformed"),
        (NotADirectoryError(errno.ENOTDIR, "x"), "configuration.invalid"),
        (IsADirectoryError("x"), "configuration.invalid"),
        (NotImplementedError(), "configuration.unsupported"),
        (ModuleNotFoundError("zstd"), "configuration.missing_extra"),
        (ValueError("?"), "unknown.exception"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_common_exceptions(error, code):
    """Common exceptions get the code that an on-call engineer expects."""
    assert classify(error).code == code


def test_attributes_of_the_wrong_type():
    """Attributes of other libraries' exceptions that have our names and other types are ignored."""
    error = ValueError("x")
    error.code, error.retryable, error.recovery = 404, "perhaps", object()
    failure = classify(error)
    assert (failure.code, failure.retryable, failure.recovery) == ("unknown.exception", False, None)
