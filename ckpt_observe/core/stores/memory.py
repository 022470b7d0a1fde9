"""Checkpoints in this process's memory: for tests, and for what need not outlive the process.

Atomic and safe between threads. `memory://` is a new store each time; `memory://name` is one per name and process.
"""

from __future__ import annotations

import threading

from ckpt_observe.core import container
from ckpt_observe.core.blob import Blob
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.stores.base import Promise, Store, newest_first, own
from ckpt_observe.errors import CheckpointNotFoundError, ConflictError

_Kept = dict[str, dict[str, tuple[CheckpointInfo, bytes]]]

_named: dict[str, tuple[threading.Lock, _Kept]] = {}


class MemoryStore(Store):
    """A dictionary with the manners of a store."""

    kind = "memory"
    promise = Promise(durable="nothing", shared="threads")

    def __init__(self, url: str = "memory://") -> None:
        super().__init__(url)
        name = url.partition("://")[2]
        fresh: tuple[threading.Lock, _Kept] = (threading.Lock(), {})
        self.quarantined: list[tuple[str, str, bytes]] = []
        self._lock, self._kept = _named.setdefault(name, fresh) if name else fresh

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        data = bytes(blob)
        if info.metadata:  # which the program may change later
            info = container.read_header(data)
        with self._lock:
            of_task = self._kept.setdefault(info.task, {})
            if info.id in of_task:
                raise ConflictError(f"{info.task!r} has a checkpoint {info.id!r} already")
            of_task[info.id] = info, data

    def get(self, task: str, id: str) -> bytes:
        try:
            return self._kept[task][id][1]
        except KeyError:
            raise _missing(task, id) from None

    def delete(self, task: str, id: str) -> None:
        with self._lock:
            try:
                del self._kept[task][id]
            except KeyError:
                raise _missing(task, id) from None
            if not self._kept[task]:
                del self._kept[task]

    def list(self, task: str) -> CheckpointInfos:
        with self._lock:
            found = [own(info) for info, _ in self._kept.get(task, {}).values()]
        found.sort(key=newest_first, reverse=True)
        return found

    def ids(self, task: str) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._kept.get(task, ()))

    def quarantine(self, task: str, id: str) -> None:
        self.quarantined.append((task, id, self.get(task, id)))
        self.delete(task, id)

    def tasks(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(self._kept))


def _missing(task: str, id: str) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(f"{task!r} has no checkpoint {id!r}")
