"""Wakes a waiting thread from any code: also from a signal handler, and from a thread that must not wait."""

from __future__ import annotations

import threading

from ckpt_observe.support.host_exceptions import ignore_errors


class Wakeup:
    """One thread waits, any thread rings. A ring while nobody waits is kept for the next wait; several count as one.

    Not a `threading.Event`: its `set` takes a lock, so that it may wait for another thread, and hangs in a signal handler that interrupts
    another `set`. The release of a lock is a single C call that keeps the GIL.
    """

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        """Let the current or next `wait` return at once."""
        with ignore_errors(RuntimeError):  # not locked: it was rung already
            self._silent.release()

    def wait(self, timeout: float) -> None:
        """Wait for a ring, or until the timeout in seconds."""
        self._silent.acquire(timeout=timeout)
