"""How a process of ours is told to end: SIGTERM or SIGINT set a flag, and nothing else.

Not an Event: its `set` takes a lock, and a handler that interrupts the `wait` of the same thread would wait for it for ever.
"""

from __future__ import annotations

import signal
import time
from types import FrameType


class Stop:
    """`asked` turns true with the first signal."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True

    def wait(self, seconds: float) -> bool:
        """Whether it was asked by then. Seconds are few: a signal does not cut them short."""
        if not self.asked:
            time.sleep(seconds)
        return self.asked
