"""Maps errno to an error code: one table for the stores of `core` and for the classification of other libraries' errors."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ckpt_observe.errors import (
    AccessError,
    CapacityError,
    CheckpointError,
    ConflictError,
    DeadlineError,
    LocationError,
    StorageError,
    UnavailableError,
)
from ckpt_observe.support.advice import add_advice
from ckpt_observe.support.host_exceptions import raise_host_exception

_Row = tuple[type[CheckpointError], str, bool]

_NO_CONNECTION: Final[_Row] = (UnavailableError, "unavailable.connection", True)
_NOT_ALLOWED: Final[_Row] = (AccessError, "storage.permission", False)
_WRONG_PATH: Final[_Row] = (LocationError, "configuration.invalid", False)
_NO_FEATURE: Final[_Row] = (LocationError, "configuration.unsupported", False)
_LOCKED: Final[_Row] = (ConflictError, "conflict.locked", True)
_IO_ERROR: Final[_Row] = (StorageError, "storage.io", True)
_NO_DESCRIPTOR: Final[_Row] = (StorageError, "storage.too_many_files", True)

_TABLE: Final[dict[int, _Row]] = {
    errno.ENOSPC: (CapacityError, "storage.no_space", False),
    errno.EDQUOT: (CapacityError, "storage.quota", False),
    errno.EFBIG: (CapacityError, "storage.too_large", False),
    errno.ENOMEM: (CapacityError, "memory.exhausted", False),
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    # Stores open with O_NOFOLLOW, so ELOOP is a symbolic link where none is allowed, else a cycle of links. Neither goes away by itself.
    errno.ELOOP: _NOT_ALLOWED,
    # The path of the store leads through a file, is a directory where a file is needed, or is too long: somebody has to change it.
    errno.ENOTDIR: _WRONG_PATH,
    errno.EISDIR: _WRONG_PATH,
    errno.ENAMETOOLONG: _WRONG_PATH,
    errno.EOPNOTSUPP: _NO_FEATURE,
    errno.ENOSYS: _NO_FEATURE,
    errno.EAGAIN: _LOCKED,
    errno.EDEADLK: _LOCKED,
    errno.EROFS: (StorageError, "storage.read_only", False),
    errno.EMFILE: _NO_DESCRIPTOR,
    errno.ENFILE: _NO_DESCRIPTOR,
    errno.EIO: _IO_ERROR,
    # The NFS server answers, but the open file was removed or exported anew: opening the path again usually works.
    errno.ESTALE: _IO_ERROR,
    errno.ETIMEDOUT: (DeadlineError, "timeout.deadline", True),
    # No peer: a server that is down, a network that is gone, or (ENOTCONN) a FUSE file system whose process died. All may come back.
    errno.ECONNREFUSED: _NO_CONNECTION,
    errno.ECONNRESET: _NO_CONNECTION,
    errno.ECONNABORTED: _NO_CONNECTION,
    errno.ENOTCONN: _NO_CONNECTION,
    errno.EPIPE: _NO_CONNECTION,
    errno.EHOSTUNREACH: _NO_CONNECTION,
    errno.EHOSTDOWN: _NO_CONNECTION,
    errno.ENETUNREACH: _NO_CONNECTION,
    errno.ENETDOWN: _NO_CONNECTION,
}
"""The exception that a store raises, its code, and whether a retry can help; the latter two as in `semconv.values.ERROR_CODES`."""

ERROR_CODES_BY_ERRNO: Final = {
    **{number: code for number, (_, code, _) in _TABLE.items()},
    errno.ENOENT: "not_found.path",
    errno.EEXIST: "conflict.exists",
}
"""Codes for the errors of other libraries. The last two are not in the table of the stores, which know whether a checkpoint is missing or
only one of their directories."""


@contextmanager
def translate_os_errors(action: str) -> Iterator[None]:
    """Raise an OSError of the block as the matching CheckpointError. `action` starts its message: "saving a checkpoint in ..."."""
    try:
        yield
    except OSError as error:
        raise_host_exception(error)
        raise to_checkpoint_error(error, action) from error


def to_checkpoint_error(error: OSError, action: str) -> CheckpointError:
    """Return the CheckpointError for an OSError; `storage.io` if the table has no row for it."""
    error_type, code, retryable = _TABLE.get(error.errno or 0, _IO_ERROR)
    return error_type(add_advice(f"{action}: {error.strerror or error}", code), code=code, retryable=retryable)
