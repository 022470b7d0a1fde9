"""What a Checkpointer remembers between calls: the last time it issued and, for each task, the checkpoint saved or loaded last."""

from __future__ import annotations

import datetime as dt
import threading
import time
from typing import TypeVar

from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.support import forks

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TICK = dt.timedelta(microseconds=1)
T = TypeVar("T")
_MAX_TASKS = 1024
"""Tasks that are remembered, because a server may see any number. The next checkpoint of a forgotten task has no parent."""


class Clock:
    """Issues strictly increasing times, so that checkpoints sort in the order of their saves, even if the system clock is set back."""

    def __init__(self) -> None:
        self._last = 0
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """Replace the lock: a thread that does not exist in the child may hold it."""
        self._lock = threading.Lock()

    def now(self) -> dt.datetime:
        with self._lock:
            self._last = max(self._last + 1, time.time_ns() // 1000)
            return _EPOCH + dt.timedelta(microseconds=self._last)


class TaskHeads:
    """The head of each task: the checkpoint that was saved or loaded last. It is the parent of the task's next checkpoint."""

    def __init__(self) -> None:
        self._heads: dict[str, CheckpointInfo] = {}
        self._issued_times: dict[str, dt.datetime] = {}
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """Replace the lock: a thread that does not exist in the child may hold it."""
        self._lock = threading.Lock()

    def get(self, task: str) -> CheckpointInfo | None:
        return self._heads.get(task)

    def set(self, info: CheckpointInfo) -> None:
        _remember(self._heads, info.task, info)

    def reset(self, task: str, head: CheckpointInfo | None) -> None:
        """Set the head of a task back to what `get` returned earlier, which may be None."""
        self._heads.pop(task, None)
        if head is not None:
            self.set(head)

    def time_after(self, head: CheckpointInfo) -> dt.datetime:
        """Return a time later than this head, which is ahead of the clock, and than all times returned for its task before.

        A batch asks several times before its first checkpoint is saved and becomes the head.
        """
        with self._lock:
            time = max(head.created, self._issued_times.get(head.task, head.created)) + _TICK
            _remember(self._issued_times, head.task, time)
        return time


def _remember(memory: dict[str, T], task: str, value: T) -> None:
    memory.pop(task, None)
    memory[task] = value
    if len(memory) > _MAX_TASKS:
        memory.pop(next(iter(memory)), None)
