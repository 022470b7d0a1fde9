"""The checkpoints of a task as this program knows them, so that tidying up after each save need not list them anew.

What other programs add or remove is seen at the next fresh listing. Until then what they added stays, and what they removed
still counts: as many fewer are left as they took away, but never without the one just saved.
"""

from __future__ import annotations

import threading
from bisect import bisect_left

from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.stores import Store
from ckpt_observe.core.stores.store import creation_order
from ckpt_observe.support import forks

FRESH_FOR = 64
"""Saves after which a task is listed anew; more where it has more checkpoints than that, so that listing costs every save the same."""
_MOST_TASKS = 64


class _Known:
    """What is known of one task. Its lock is its own: others need not wait while a slow store lists it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.age = FRESH_FOR
        self.infos: CheckpointInfos = []
        """Oldest first: what comes and what goes does so at an end."""


class Ledger:
    """Listings, brought up to date by our own saves and removals. May be shared by threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """Know nothing, as in a forked child: there a lock may be held by a thread that is not there."""
        self._lock = threading.Lock()
        self._tasks: dict[str, _Known] = {}

    def saved(self, info: CheckpointInfo) -> CheckpointInfos:
        """The checkpoints of the task, newest first, after this one was saved: a copy, which stays as it is while others save."""
        known = self._known(info.task)
        with known.lock:
            known.age += 1
            if known.age > max(FRESH_FOR, len(known.infos)):
                known.infos = sorted(self._store.list(info.task), key=creation_order)
                known.age = 0
            else:
                place = bisect_left(known.infos, creation_order(info), key=creation_order)
                if place == len(known.infos) or known.infos[place].id != info.id:  # a listing of another thread may have had it already
                    known.infos.insert(place, info)
            return known.infos[::-1]

    def removed(self, task: str, ids: set[str]) -> None:
        """These are gone."""
        known = self._tasks.get(task)
        if known is None:
            return
        with known.lock:
            infos, oldest = known.infos, 0
            while oldest < len(infos) and infos[oldest].id in ids:  # most often they go, and nobody looks at the others
                oldest += 1
            del infos[:oldest]
            if oldest < len(ids):
                infos[:] = [info for info in infos if info.id not in ids]

    def forget(self, task: str) -> None:
        """List it anew the next time."""
        with self._lock:
            self._tasks.pop(task, None)

    def _known(self, task: str) -> _Known:
        with self._lock:
            known = self._tasks.get(task)
            if known is None:
                known = self._tasks[task] = _Known()
                if len(self._tasks) > _MOST_TASKS:
                    del self._tasks[next(iter(self._tasks))]
            return known
