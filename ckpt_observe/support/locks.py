"""File locks that the kernel releases when their holder dies. They tell a live owner from a dead one.

A stored pid could not: pids are reused. `flock` belongs to the open file, so a forked child shares the lock until it closes its copy of
the descriptor, which it does before any other code of ours runs.
"""

from __future__ import annotations

import os
import sys
from typing import Self

from ckpt_observe.support import files, forks
from ckpt_observe.support.host_exceptions import raise_host_exception

if sys.platform == "win32":
    import msvcrt

    def _try_lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _unlock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _try_lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


def try_lock(fd: int) -> bool:
    """Lock an open file until it is closed, also by the end of the process. Return False if that is not possible. Never waits."""
    try:
        _try_lock(fd)
    except OSError as error:
        raise_host_exception(error)
        return False
    return True


class FileLock:
    """An exclusive lock on a file, held until `release()` or the end of the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        forks.register(self, forks.Order.DESCRIPTORS)

    @classmethod
    def try_acquire(cls, path: str, *, create: bool = True) -> Self | None:
        """Return the lock, or None if another process or object holds it, or the file system has no locks. Never waits.

        Raise OSError if the file cannot be opened.
        """
        fd = files.open_regular(path, os.O_RDWR | (os.O_CREAT if create else 0))
        try:
            _try_lock(fd)
        except OSError as error:
            os.close(fd)
            raise_host_exception(error)
            return None
        return cls(fd)

    def describe_holder(self, text: str) -> None:
        """Write a description of the holder into the file. It is for people; no code relies on it."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text.encode(), 0)

    def release(self) -> None:
        """Unlock and close. Explicit, because a child that another thread forked during `try_acquire` may hold a copy of the descriptor."""
        fd, self._fd = self._fd, -1  # first: two threads may release it, and the number may be a file of the host program afterwards
        if fd >= 0:
            try:
                _unlock(fd)
            finally:
                os.close(fd)

    def reset_after_fork(self) -> None:
        """Close this process's copy without unlocking: the lock stays with the parent alone, so that the parent's death becomes visible."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def is_locked(path: str) -> bool:
    """Return whether somebody holds the lock, this process included. Raise OSError if the file does not exist."""
    lock = FileLock.try_acquire(path, create=False)
    if lock is not None:
        lock.release()
    return lock is None
