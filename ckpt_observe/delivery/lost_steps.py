"""Computes how many steps a load or restore throws away: those between its checkpoint and the last save of the task that began before it.

That save may have been interrupted in a process that is dead by now, so only the delivery knows about it. The delivery sees every
operation on its way to the spool, those of dead processes included, and asks the trace store about earlier ones. If another process
delivers, it sees the operations when it reads the spool, once for each exporter, so it remembers its answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events

_CAPACITY: Final = 1024
"""Number of tasks and of restores that are remembered, the most recently used ones."""
Key = TypeVar("Key")
Value = TypeVar("Value")
_HAS_STEP: Final = f'"{names.STEP}"'.encode()
_NOT_A_RECORD: Final = (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
_READ: Final = ("load", "restore")
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class LastSave(NamedTuple):
    """When the last save of a task was started, and its step."""

    unix_nano: int
    step: int


History = Callable[[str], LastSave | None]
"""Returns the last save of a task that was delivered earlier, or None."""


class LostSteps:
    """Adds the number of lost steps to the records of loads and restores. Remembers the last save of each task.

    `find_dead` adopts the journals of dead processes, because a restore often follows a crash. Called from any thread; `find_dead` is
    called without holding the lock, because it acquires others.
    """

    def __init__(self, history: History, find_dead: Callable[[], object]) -> None:
        self._history, self._find_dead = history, find_dead
        self._last_search = 0
        """When the last search for dead processes started, in Unix nanoseconds."""
        self._lock = threading.RLock()  # re-entrant: a signal handler that saves a checkpoint may collect pages, too
        self._last_saves: dict[str, LastSave] = {}
        self._answers: dict[tuple[str, int, int], int] = {}
        """Lost steps by span id, start time and step of a load or restore."""

    def annotate(self, record: bytes) -> bytes:
        """Return the record, with the lost steps if it is a load or restore. Remember its step if it is a save."""
        return self._annotate(record, self._search_dead)

    def annotate_dead(self, record: bytes) -> bytes:
        """Do the same as `annotate` for a record of a dead process, but do not search for further dead processes."""
        return self._annotate(record, lambda _start: None)

    def _search_dead(self, start: int) -> None:
        """Search for dead processes, unless the last search began after this restore: one search serves a whole backlog of restores."""
        if start >= self._last_search:
            now = time.time_ns()
            self._find_dead()
            self._last_search = now

    def _annotate(self, record: bytes, search_dead: Callable[[int], None]) -> bytes:
        if _HAS_STEP not in record:
            return record
        try:
            return self._with_lost_steps(record, search_dead)
        except _NOT_A_RECORD:  # `assemble` reports it
            return record

    def _with_lost_steps(self, record: bytes, search_dead: Callable[[int], None]) -> bytes:
        lines = _decode(record)
        begin, end = lines[0], lines[-1]
        if begin[0] != events.BEGIN or end[0] != events.END:
            return record
        attributes = {**(begin[7] or {}), **(end[3] or {})}
        operation, task, step = begin[4], attributes[names.TASK_ID], attributes[names.STEP]
        restore = (begin[1], begin[2], step)
        if operation == "restore" and restore not in self._answers:
            search_dead(begin[2])
        with self._lock:
            if operation == "save":
                self._remember(task, LastSave(begin[2], step))
            if operation not in _READ or names.STEPS_SINCE in attributes:
                return record
            lost = self._answers[restore] if restore in self._answers else self._last_step_before(begin[2], task) - step
            _store(self._answers, restore, lost)
        if lost < 0:
            return record
        end[3] = {**(end[3] or {}), names.STEPS_SINCE: lost}
        return _encode(lines)

    def _last_step_before(self, unix_nano: int, task: str) -> int:
        """Return the step of the last save of a task, or -1 if none is known or it started after `unix_nano`."""
        if task not in self._last_saves:
            self._remember(task, self._history(task) or LastSave(0, -1))  # asked once: from then on we see every save
        last = self._last_saves[task]
        return last.step if last.unix_nano < unix_nano else -1

    def _remember(self, task: str, save: LastSave) -> None:
        _store(self._last_saves, task, max(self._last_saves.get(task, save), save))


def _store(cache: dict[Key, Value], key: Key, value: Value) -> None:
    """Store a value as the most recently used one. If the cache is full, remove the least recently used."""
    cache.pop(key, None)
    cache[key] = value
    if len(cache) > _CAPACITY:
        del cache[next(iter(cache))]
