"""Caches the list of a task's checkpoints, so that retention need not list the store after every save.

Changes by other programs are seen when the store is listed again. Until then, retention does not remove checkpoints that they added, and
still counts those that they removed. It may therefore keep too few, but it never removes the checkpoint that was just saved.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.stores import Store
from ckpt_observe.core.stores.store import creation_order
from ckpt_observe.support import forks

REFRESH_INTERVAL = 64
"""Saves after which a task is listed again. For a longer list: as many saves as it has entries, so that the cost per save is constant."""
_MAX_TASKS = 64


class _TaskEntry:
    """The cached list of one task. It has its own lock, so that other tasks do not wait while a slow store lists this one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.age = REFRESH_INTERVAL
        self.infos: CheckpointInfos = []
        """Oldest first, because checkpoints are added and removed at the ends."""

    def remove(self, ids: set[str]) -> None:
        """Remove checkpoints. Usually they are the oldest; then the rest is not searched."""
        oldest = 0
        while oldest < len(self.infos) and self.infos[oldest].id in ids:
            oldest += 1
        del self.infos[:oldest]
        if oldest < len(ids):
            self.infos[:] = [info for info in self.infos if info.id not in ids]


class TaskListing:
    """Cached lists of checkpoints by task, updated by the saves and removals of this Checkpointer. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """Forget everything: in a forked child, a thread that does not exist may hold a lock."""
        self._lock = threading.Lock()
        self._tasks: dict[str, _TaskEntry] = {}

    def add(self, info: CheckpointInfo) -> CheckpointInfos:
        """Add a saved checkpoint and return a copy of its task's list, newest first."""
        entry = self._entry(info.task)
        with entry.lock:
            entry.age += 1
            if entry.age > max(REFRESH_INTERVAL, len(entry.infos)):
                entry.infos = sorted(self._store.list(info.task), key=creation_order)
                entry.age = 0
            else:
                position = bisect_left(entry.infos, creation_order(info), key=creation_order)
                if position == len(entry.infos) or entry.infos[position].id != info.id:  # another thread's refresh may have added it
                    entry.infos.insert(position, info)
            return entry.infos[::-1]

    def remove(self, task: str, ids: set[str]) -> None:
        """Remove checkpoints from the cached list after they were deleted from the store."""
        entry = self._tasks.get(task)
        if entry is None:
            return
        with entry.lock:
            entry.remove(ids)

    def forget(self, task: str) -> None:
        """Drop the cached list of a task, so that the next save lists the store again."""
        with self._lock:
            self._tasks.pop(task, None)

    def _entry(self, task: str) -> _TaskEntry:
        with self._lock:
            entry = self._tasks.get(task)
            if entry is None:
                entry = self._tasks[task] = _TaskEntry()
                if len(self._tasks) > _MAX_TASKS:
                    del self._tasks[next(iter(self._tasks))]
            return entry
