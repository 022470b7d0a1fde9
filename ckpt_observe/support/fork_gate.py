"""Lets a fork wait until no thread is inside a block that a child could not leave.

SQLite keeps the locks of a file in memory, shared by all connections of a process. A child that is forked while another thread holds the
write lock inherits it as held, and nobody in the child can release it: each of its writes to that file fails with "database is locked", for
as long as it lives. The same holds for the mutexes inside SQLite.
"""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType
from typing import Final

from ckpt_observe.support import forks

FORK_TIMEOUT: Final = 1.0
"""Seconds that a fork waits at most. A transaction takes milliseconds, unless the disk or another process blocks it."""


class ForkGate:
    """A context manager for blocks during which no fork should happen. They may be nested, and run in several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # re-entrant: a signal handler may use the gate or fork
        """Of the condition. Entered itself: `Condition.__enter__` leaves it held if a signal handler raises there."""
        self._changed = threading.Condition(self._lock)
        self._blocks: Counter[int] = Counter()
        """How many blocks each thread is in."""
        self._forking_threads: set[int] = set()
        forks.register(self)
        forks.run_in_parent(self._before_fork, self._after_fork)

    def __enter__(self) -> None:
        thread = threading.get_ident()
        with self._lock:
            if self._forking_threads and thread not in self._blocks:
                self._changed.wait_for(lambda: not self._forking_threads, FORK_TIMEOUT)
            self._blocks[thread] += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        thread = threading.get_ident()
        with self._lock:
            self._blocks[thread] -= 1
            if self._blocks[thread] <= 0:
                del self._blocks[thread]
                self._changed.notify_all()

    def _before_fork(self) -> None:
        thread = threading.get_ident()
        with self._lock:
            self._forking_threads.add(thread)
            self._changed.wait_for(lambda: self._blocks.keys() <= {thread}, FORK_TIMEOUT)

    def _after_fork(self) -> None:
        with self._lock:
            # A gate that was created while a fork had begun is not asked before that fork, but is told about its end.
            self._forking_threads.discard(threading.get_ident())
            self._changed.notify_all()

    def reset_after_fork(self) -> None:
        """In a child: no other thread exists. The thread that forked may be in a block itself."""
        if self._lock.acquire(blocking=False):  # free, or held by this thread, below a signal handler that forked
            self._lock.release()
        else:
            self._lock = threading.RLock()
            self._changed = threading.Condition(self._lock)
        thread = threading.get_ident()
        self._blocks = Counter({thread: self._blocks[thread]} if thread in self._blocks else {})
        self._forking_threads = set()
