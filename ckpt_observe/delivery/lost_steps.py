"""How many steps a restore throws away: those between the checkpoint it came back to and the last save that was begun for its task.

That save may have been cut short, in a process that is dead by now, so nobody but the delivery knows of it. It sees every operation pass on
its way to the spool, those of dead processes too, and asks the trace store about earlier ones. Where another process delivers, it sees them
pass on their way out of the spool, once for each exporter, so it remembers what it said.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events

_REMEMBERED: Final = 1024
"""Tasks and restores, the latest."""
Key = TypeVar("Key")
Kept = TypeVar("Kept")
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


class LostSteps:
    """Remembers the last save of each task. `find_dead` brings in what dead processes began, for whoever restores comes after one.

    Used by any thread; `find_dead` is called without the lock, for it takes others.
    """

    def __init__(self, history: History, find_dead: Callable[[], object]) -> None:
        self._history, self._find_dead = history, find_dead
        self._looked = 0
        """When the last look for the dead began, in Unix nanoseconds."""
        self._lock = threading.RLock()  # re-entrant: a signal handler that finds no page collects, too
        self._last: dict[str, Begun] = {}
        self._told: dict[tuple[str, int, int], int] = {}
        """By the id, the beginning and the step of a restore."""

    def noted(self, record: bytes) -> bytes:
        """The record of an operation, with the steps since if it is a restore; what a save says is remembered."""
        return self._checked(record, self._look)

    def found(self, record: bytes) -> bytes:
        """The same for what a dead process left, by whoever is finding the dead."""
        return self._checked(record, lambda _began: None)

    def _look(self, began: int) -> None:
        """Whoever died before the restore began was found by a look since: a backlog of restores takes one look, not one each."""
        if began >= self._looked:
            now = time.time_ns()
            self._find_dead()
            self._looked = now

    def _checked(self, record: bytes, look: Callable[[int], None]) -> bytes:
        if _HAS_STEP not in record:
            return record
        try:
            return self._noted(record, look)
        except (msgspec.DecodeError, LookupError, TypeError):  # not what we write: assembling will say so
            return record

    def _noted(self, record: bytes, look: Callable[[int], None]) -> bytes:
        lines = _decode(record)
        begun, end = lines[0], lines[-1]
        if begun[0] != events.BEGIN or end[0] != events.END:
            return record
        given = {**(begun[7] or {}), **(end[3] or {})}
        operation, task, step = begun[4], given[names.TASK_ID], given[names.STEP]
        this = (begun[1], begun[2], step)
        if operation == "restore" and this not in self._told:
            look(begun[2])
        with self._lock:
            if operation == "save":
                self._remember(task, Begun(begun[2], step))
            if operation not in _READ or names.STEPS_SINCE in given:
                return record
            since = _keep(self._told, this, self._told[this] if this in self._told else self._last_before(begun[2], task) - step)
        if since < 0:
            return record
        end[3] = {**(end[3] or {}), names.STEPS_SINCE: since}
        return _encode(lines)

    def _last_before(self, unix_nano: int, task: str) -> int:
        """The step of the last save; -1 if none is known."""
        if task not in self._last:
            self._remember(task, self._history(task) or Begun(0, -1))  # asked once: from then on we see them pass
        last = self._last[task]
        return last.step if last.unix_nano < unix_nano else -1

    def _remember(self, task: str, begun: Begun) -> None:
        _keep(self._last, task, max(self._last.get(task, begun), begun))


def _keep(memory: dict[Key, Kept], key: Key, value: Kept) -> Kept:
    """As the latest; the one that was not asked for longest makes room."""
    memory.pop(key, None)
    memory[key] = value
    if len(memory) > _REMEMBERED:
        del memory[next(iter(memory))]
    return value
