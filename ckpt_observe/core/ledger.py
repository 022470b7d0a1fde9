"""The checkpoints of a task as this program knows them, so that tidying up after each save need not list them anew.

What others add is seen at the next fresh listing. Until then a ledger knows too few checkpoints, never too many of the newest:
it can only keep more than it should.
"""

from __future__ import annotations

from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.stores import Store
from ckpt_observe.core.stores.base import newest_first

FRESH_FOR = 64
"""Saves after which a task is listed anew; more where it has more checkpoints than that, so that listing costs every save the same."""
_MOST_TASKS = 64


class Ledger:
    """Listings, brought up to date by our own saves and removals."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[list[int], CheckpointInfos]] = {}

    def saved(self, info: CheckpointInfo) -> CheckpointInfos:
        """The checkpoints of the task, newest first, after this one was saved."""
        age, infos = self._known.get(info.task, ([FRESH_FOR], []))
        age[0] += 1
        if age[0] > max(FRESH_FOR, len(infos)):
            age, infos = [0], self._store.list(info.task)
            self._known.pop(info.task, None)
            self._known[info.task] = age, infos
            if len(self._known) > _MOST_TASKS:
                self._known.pop(next(iter(self._known)), None)
        elif all(known.id != info.id for known in infos[:FRESH_FOR]):  # a fresh listing of another thread may have had it already
            infos.insert(0, info)
            if len(infos) > 1 and infos[1].created > info.created:  # a newer one of another thread was faster
                infos.sort(key=newest_first, reverse=True)
        return infos

    def removed(self, task: str, ids: set[str]) -> None:
        """These are gone."""
        infos = self._known[task][1] if task in self._known else []
        left = len(ids)
        while infos and infos[-1].id in ids:  # the oldest go, most often, and nobody looks at the others
            infos.pop()
            left -= 1
        if left > 0:
            infos[:] = [info for info in infos if info.id not in ids]

    def forget(self, task: str) -> None:
        """List it anew the next time."""
        self._known.pop(task, None)
