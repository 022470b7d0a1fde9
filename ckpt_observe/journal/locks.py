"""A lock that the kernel gives back when its holder dies: how a journal tells a live owner from a dead one.

Never by pid: pids are reused. `flock` belongs to the open file, so a forked child shares it until it closes its copy, which it does
first thing.
"""

from __future__ import annotations

import os
import sys
import weakref
from typing import Final

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


_FLAGS: Final = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


class Lock:
    """Held from `take` until `release`, or until the process ends."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _held.add(self)

    @classmethod
    def take(cls, path: str, *, create: bool = True) -> Lock | None:
        """The lock, or None when somebody else has it. Never waits. OSError when the file cannot be opened."""
        fd = os.open(path, _FLAGS | (os.O_CREAT if create else 0), 0o600)
        try:
            _try_lock(fd)
        except OSError:
            os.close(fd)
            return None
        return cls(fd)

    def note(self, text: str) -> None:
        """Say in the file who holds it, for people."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text.encode(), 0)

    def release(self) -> None:
        """Give it back, also where a child has a copy: one that was forked by another thread before this lock was among those held."""
        if self._fd >= 0:
            _unlock(self._fd)
            self.forget()

    def forget(self) -> None:
        """In a forked child: close our copy. It stays the parent's."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def _forget() -> None:
    """In a forked child: close our copies, so that the parent's death is seen although we live. The parent keeps its locks."""
    for lock in list(_held):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
