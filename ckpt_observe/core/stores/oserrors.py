"""What the operating system says, in our words: one table from errno to exception."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from ckpt_observe.errors import AccessError, CapacityError, CheckpointError, DeadlineError, StorageError, UnavailableError

_TABLE: dict[int, tuple[type[CheckpointError], str, bool]] = {
    errno.ENOSPC: (CapacityError, "storage.no_space", False),
    errno.EDQUOT: (CapacityError, "storage.quota", False),
    errno.EFBIG: (CapacityError, "storage.too_large", False),
    errno.ENOMEM: (CapacityError, "memory.exhausted", False),
    errno.EACCES: (AccessError, "storage.permission", False),
    errno.EPERM: (AccessError, "storage.permission", False),
    errno.ELOOP: (AccessError, "storage.permission", False),
    errno.EROFS: (StorageError, "storage.read_only", False),
    errno.EMFILE: (StorageError, "storage.too_many_files", True),
    errno.ENFILE: (StorageError, "storage.too_many_files", True),
    errno.ETIMEDOUT: (DeadlineError, "timeout.deadline", True),
    errno.ESTALE: (UnavailableError, "unavailable.connection", True),
    errno.ENOTCONN: (UnavailableError, "unavailable.connection", True),
    errno.ECONNREFUSED: (UnavailableError, "unavailable.connection", True),
    errno.ECONNRESET: (UnavailableError, "unavailable.connection", True),
    errno.EHOSTUNREACH: (UnavailableError, "unavailable.connection", True),
}


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Raise an OSError of the block as one of ours, from the original."""
    try:
        yield
    except OSError as error:
        raise of(error, doing) from error


def of(error: OSError, doing: str) -> CheckpointError:
    kind, code, retryable = _TABLE.get(error.errno or 0, (StorageError, "storage.io", True))
    return kind(f"{doing}: {error.strerror or error}", code=code, retryable=retryable)
