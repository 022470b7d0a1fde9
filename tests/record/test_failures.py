"""From an exception to a class of the closed set."""

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
from ckpt_observe.record.failures import ERROR_CODES_BY_TYPE, classify
from ckpt_observe.semconv.values import ERROR_CLASSES, ERROR_CODES


def subclasses(kind):
    return [kind, *(below for each in kind.__subclasses__() for below in subclasses(each))]


def test_tables_are_closed():
    """Every code in a table is in the registry, every class of a code too, and every class has a code."""
    assert set(ERROR_CODES_BY_TYPE.values()) <= set(ERROR_CODES)
    assert {row.error_class for row in ERROR_CODES.values()} == set(ERROR_CLASSES)


@pytest.mark.parametrize("kind", [*subclasses(errors.CheckpointError), *subclasses(errors.ConfigError)])
def test_own_errors(kind):
    """Each of our own errors names a known class and code, and they agree."""
    assert kind.error_class in ERROR_CLASSES
    assert ERROR_CODES[kind.code].error_class == kind.error_class
    error = kind("feature", "extra") if kind is errors.MissingExtraError else kind("what")
    found = classify(error)
    assert (found.error_class, found.code, found.retryable) == (kind.error_class, kind.code, kind.retryable)


@pytest.mark.parametrize("code", ERROR_CODES)
def test_codes(code):
    """A code that an exception carries goes before every table."""

    class OddError(OSError):
        pass

    error = OddError(errno.ENOSPC, "x")
    error.code = code
    found = classify(error)
    assert (found.code, found.error_class) == (code, ERROR_CODES[code].error_class)


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
        (ModuleNotFoundError("zstd"), "configuration.missing_extra"),
        (ValueError("?"), "unknown.exception"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_common_exceptions(error, code):
    """What programs raise has the code that on-call would give it."""
    assert classify(error).code == code


def test_an_exception_with_odd_attributes():
    """Attributes of somebody's exception that only look like ours are not believed."""
    error = ValueError("x")
    error.code, error.retryable, error.recovery = 404, "perhaps", object()
    found = classify(error)
    assert (found.code, found.retryable, found.recovery) == ("unknown.exception", False, None)
