"""Computes how many steps a load or restore throws away: those between its checkpoint and the last save of the task that began before it.

That save may have been interrupted in a process that is dead by now, so only the delivery knows about it. The delivery sees every
operation on its way to the spool, those of dead processes included, and asks the trace store about earlier ones. If another process
delivers, it sees the operations when it reads the spool, once for each exporter, so it remembers its answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ckpt_observe.delivery.recent_values import store_recent
from ckpt_observe.semconv import attributes as names

_READ: Final = ("load", "restore")


class LastSave(NamedTuple):
    """When the last save of a task was started, and its step."""

    unix_nano: int
    step: int


History = Callable[[str], LastSave | None]
"""Returns the last save of a task that was delivered earlier, or None."""


class LostSteps:
    """Adds the number of lost steps to the records of loads and restores. Remembers the last save of each task. Called from any thread."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._lock = threading.RLock()  # re-entrant: a signal handler that saves a checkpoint may collect pages, too
        self._last_saves: dict[str, LastSave] = {}
        self._answers: dict[tuple[str, int, int], int] = {}
        """Lost steps by span id, start time and step of a load or restore."""

    def annotate(self, lines: list[Any], attributes: Mapping[str, Any], search_dead: Callable[[int], None]) -> bool:
        """Add the lost steps to a load or restore. Return whether the lines were changed. Remember the step of a save.

        `search_dead` adopts the journals of dead processes, because a restore often follows a crash. It is called without holding the
        lock, because it acquires others. Parts of a task with a namespace of their own count their own steps and are left out.
        """
        task, step = attributes.get(names.TASK_ID), attributes.get(names.STEP)
        if task is None or step is None or attributes.get(names.NAMESPACE):
            return False
        begin, end = lines[0], lines[-1]
        operation = begin[4]
        if operation == "save":
            with self._lock:
                self._remember(task, LastSave(begin[2], step))
        if operation not in _READ:
            return False
        restore = (begin[1], begin[2], step)
        if operation == "restore" and restore not in self._answers:
            search_dead(begin[2])
        with self._lock:
            if names.STEPS_SINCE in attributes:
                return False
            lost = self._answers[restore] if restore in self._answers else self._last_step_before(begin[2], task) - step
            store_recent(self._answers, restore, lost)
        if lost < 0:
            return False
        end[3] = {**(end[3] or {}), names.STEPS_SINCE: lost}
        return True

    def _last_step_before(self, unix_nano: int, task: str) -> int:
        """Return the step of the last save of a task, or -1 if none is known or it started after `unix_nano`."""
        if task not in self._last_saves:
            self._remember(task, self._history(task) or LastSave(0, -1))  # asked once: from then on we see every save
        last = self._last_saves[task]
        return last.step if last.unix_nano < unix_nano else -1

    def _remember(self, task: str, save: LastSave) -> None:
        store_recent(self._last_saves, task, max(self._last_saves.get(task, save), save))
