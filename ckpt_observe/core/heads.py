"""What a Checkpointer remembers between calls: the time it last gave, and where each task stands."""

from __future__ import annotations

import datetime as dt
import secrets
import threading
import time

from ckpt_observe.core.model import CheckpointInfo

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MOST_TASKS = 1024
"""A server may see tasks without end; one forgotten here only has no parent in its next checkpoint."""


class Clock:
    """Times that always go forward, so that the order of saves is the order of their times."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def now(self) -> dt.datetime:
        with self._lock:
            self._last = max(self._last + 1, time.time_ns() // 1000)
            return _EPOCH + dt.timedelta(microseconds=self._last)


class Heads:
    """The checkpoint that each task saved or loaded last: the parent of its next one."""

    def __init__(self) -> None:
        self._heads: dict[str, CheckpointInfo] = {}

    def get(self, task: str) -> CheckpointInfo | None:
        return self._heads.get(task)

    def set(self, info: CheckpointInfo) -> None:
        self._heads.pop(info.task, None)
        self._heads[info.task] = info
        if len(self._heads) > _MOST_TASKS:
            self._heads.pop(next(iter(self._heads)), None)


def new_id(created: dt.datetime) -> str:
    """An id that sorts by time and that nobody else makes."""
    time = created.isoformat(timespec="microseconds")[:26].replace("-", "").replace(":", "")  # a tenth of what strftime takes
    return f"{time}-{secrets.token_hex(4)}"
