"""A save asked for from outside: `kill -USR1`, or the notice before a preemption."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Self


class SaveOnSignal:
    """While the block runs, these signals ask for a save at the next step, where the trigger has `OnRequest()`.

    A function that handled them before is called too. What the system does by default, such as to end the program at SIGTERM, is not done.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGUSR1,)) -> None:
        self._signals = tuple(dict.fromkeys(signals))  # each once: the second time, what handled it before would be this
        self._before: dict[int, Any] = {}
        self._asked = False

    def taken(self) -> bool:
        """Whether a save was asked for since this was last called."""
        asked, self._asked = self._asked, False
        return asked

    def __enter__(self) -> Self:
        try:
            for number in self._signals:
                self._before[number] = signal.signal(number, self._handle)
        except BaseException:
            self._restore()  # one that cannot be handled leaves none handled: there is no block that would end
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
