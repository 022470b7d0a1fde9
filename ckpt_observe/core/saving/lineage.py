"""What a Checkpointer remembers between calls: the time it last gave, and where each task stands."""

from __future__ import annotations

import datetime as dt
import secrets
import threading
import time
from typing import TypeVar

from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.support import forks

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TICK = dt.timedelta(microseconds=1)
T = TypeVar("T")
_MOST_TASKS = 1024
"""A server may see tasks without end; one forgotten here only has no parent in its next checkpoint."""


class Clock:
    """Times that always go forward, so that the order of saves is the order of their times."""

    def __init__(self) -> None:
        self._last = 0
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """In a forked child: a lock that no thread holds which is not there."""
        self._lock = threading.Lock()

    def now(self) -> dt.datetime:
        with self._lock:
            self._last = max(self._last + 1, time.time_ns() // 1000)
            return _EPOCH + dt.timedelta(microseconds=self._last)


class Heads:
    """The checkpoint that each task saved or loaded last: the parent of its next one."""

    def __init__(self) -> None:
        self._heads: dict[str, CheckpointInfo] = {}
        self._ahead: dict[str, dt.datetime] = {}
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """As above."""
        self._lock = threading.Lock()

    def get(self, task: str) -> CheckpointInfo | None:
        return self._heads.get(task)

    def set(self, info: CheckpointInfo) -> None:
        _remember(self._heads, info.task, info)

    def put(self, task: str, head: CheckpointInfo | None) -> None:
        """Back to a head that was got before."""
        self._heads.pop(task, None)
        if head is not None:
            self.set(head)

    def after(self, head: CheckpointInfo) -> dt.datetime:
        """A time later than a head's that is ahead of the clock, and than those given since: what a batch has is not saved yet."""
        with self._lock:
            time = max(head.created, self._ahead.get(head.task, head.created)) + _TICK
            _remember(self._ahead, head.task, time)
        return time


def _remember(known: dict[str, T], task: str, value: T) -> None:
    known.pop(task, None)
    known[task] = value
    if len(known) > _MOST_TASKS:
        known.pop(next(iter(known)), None)


def new_id(created: dt.datetime) -> str:
    """An id that sorts by time and that nobody else makes."""
    time = created.isoformat(timespec="microseconds")[:26].replace("-", "").replace(":", "")  # a tenth of what strftime takes
    return f"{time}-{secrets.token_hex(4)}"
