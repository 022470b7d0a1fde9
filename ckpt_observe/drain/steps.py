"""How many steps a restore throws away: those between the checkpoint it came back to and the last save that was begun for its task.

That save may have been cut short, in a process that is dead by now, so nobody but the drain knows of it. It sees every operation pass on
its way to the spool, those of dead processes too, and asks the trace store about earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events

_REMEMBERED: Final = 1024
"""Tasks, the latest."""
_HAS_STEP: Final = f'"{names.STEP}"'.encode()
_READ: Final = ("load", "restore")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Begun(NamedTuple):
    """The last save that was begun for a task."""

    unix_nano: int
    step: int


History = Callable[[str], Begun | None]
"""What was delivered earlier: the last save of a task."""


class Steps:
    """Remembers the last save of each task. `find_dead` brings in what dead processes began, for whoever restores comes after one."""

    def __init__(self, history: History, find_dead: Callable[[], None]) -> None:
        self._history, self._find_dead = history, find_dead
        self._last: dict[str, Begun] = {}

    def noted(self, record: bytes) -> bytes:
        """The record of an operation, with the steps since if it is a restore; what a save says is remembered."""
        if _HAS_STEP not in record:
            return record
        try:
            return self._noted(record)
        except (msgspec.DecodeError, LookupError, TypeError):  # not what we write: assembling will say so
            return record

    def _noted(self, record: bytes) -> bytes:
        lines = _decode(record)
        begun, end = lines[0], lines[-1]
        if begun[0] != events.BEGIN or end[0] != events.END:
            return record
        given = {**(begun[7] or {}), **(end[3] or {})}
        operation, task, step = begun[4], given[names.TASK_ID], given[names.STEP]
        if operation == "save":
            self._remember(task, Begun(begun[2], step))
        if operation == "restore":
            self._find_dead()
        if operation in _READ and (since := self._last_before(begun[2], task) - step) >= 0:
            end[3] = {**(end[3] or {}), names.STEPS_SINCE: since}
            return _encode(lines)
        return record

    def _last_before(self, unix_nano: int, task: str) -> int:
        """The step of the last save; -1 if none is known."""
        if task not in self._last:
            self._remember(task, self._history(task) or Begun(0, -1))  # asked once: from then on we see them pass
        last = self._last[task]
        return last.step if last.unix_nano < unix_nano else -1

    def _remember(self, task: str, begun: Begun) -> None:
        self._last[task] = max(self._last.pop(task, begun), begun)
        if len(self._last) > _REMEMBERED:
            del self._last[next(iter(self._last))]
