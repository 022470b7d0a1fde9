"""Waiting for the `asyncio.Lock` of an object of a library is a phase: asynchronous savers let one task after another use their connection.

The class of such a lock is replaced by a subclass, because all locks of a program have the same class, and most have nothing to do with us.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, Final, Literal

from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.support.host_exceptions import ignore_errors

_wait: Final = SummedPhase("", "wait").wrapper_for(asyncio.Lock.acquire)


class _ObservedLock(asyncio.Lock):
    """A lock whose `acquire` is the phase `wait` of the running operation. Outside an operation it is an ordinary lock."""

    __module__, __qualname__ = asyncio.Lock.__module__, asyncio.Lock.__qualname__  # `repr` prints them

    async def acquire(self) -> Literal[True]:
        await _wait(asyncio.Lock.acquire, self, (self,), {})  # not of `super()`: `release` may make it an ordinary lock before this runs
        return True

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        """Pickle and copy as an ordinary lock."""
        return asyncio.Lock, (), vars(self)


class ObservedLocks:
    """Locks that an instrumentor observes."""

    def __init__(self) -> None:
        self._locks: weakref.WeakSet[asyncio.Lock] = weakref.WeakSet()

    def observe(self, lock: object) -> None:
        """Observe a lock. Anything else, such as a subclass of the host program, is not changed."""
        if type(lock) is asyncio.Lock:
            lock.__class__ = _ObservedLock
            self._locks.add(lock)

    def release(self) -> None:
        """Make all of them ordinary locks again."""
        with ignore_errors(KeyError):  # it is empty. Not a loop over the set: other threads may add locks meanwhile
            while True:
                self._locks.pop().__class__ = asyncio.Lock
