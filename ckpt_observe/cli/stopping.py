"""How our own processes stop: SIGTERM and SIGINT set a flag, and nothing else.

The flag is not a `threading.Event`: its `set` acquires a lock, and a handler that interrupts the `wait` of the same thread would deadlock.
"""

from __future__ import annotations

import signal
import time
from types import FrameType


class StopSignal:
    """`received` becomes True with the first SIGTERM or SIGINT."""

    def __init__(self) -> None:
        self.received = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True

    def wait(self, seconds: float) -> bool:
        """Sleep, and return whether a signal was received. A signal does not shorten the sleep, so keep it short."""
        if not self.received:
            time.sleep(seconds)
        return self.received
