"""Checkpoints in the memory of this process, for tests and for states that need not outlive the process.

Atomic and safe between threads. `memory://` is a new store each time; `memory://name` is shared within the process.
"""

from __future__ import annotations

import threading

from ckpt_observe.core.format import container
from ckpt_observe.core.format.blob import Blob
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.stores.store import Capabilities, Store, already_exists, copy_metadata, creation_order, not_found

_Checkpoints = dict[str, dict[str, tuple[CheckpointInfo, bytes]]]

_shared: dict[str, tuple[threading.Lock, _Checkpoints]] = {}


class MemoryStore(Store):
    """A dictionary of checkpoints."""

    kind = "memory"
    capabilities = Capabilities(durability="nothing", writers="threads")

    def __init__(self, url: str = "memory://") -> None:
        super().__init__(url)
        name = url.partition("://")[2]
        new: tuple[threading.Lock, _Checkpoints] = (threading.Lock(), {})
        self.quarantined: list[tuple[str, str, bytes]] = []
        self._lock, self._checkpoints = _shared.setdefault(name, new) if name else new

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        data = bytes(blob)
        if info.metadata:  # a copy, because the program may change its metadata later
            info = container.read_header(data)
        with self._lock:
            checkpoints = self._checkpoints.setdefault(info.task, {})
            if info.id in checkpoints:
                raise already_exists(info.task, info.id)
            checkpoints[info.id] = info, data

    def get(self, task: str, id: str) -> bytes:
        try:
            return self._checkpoints[task][id][1]
        except KeyError:
            raise not_found(task, id, self.location) from None

    def delete(self, task: str, id: str) -> None:
        with self._lock:
            try:
                del self._checkpoints[task][id]
            except KeyError:
                raise not_found(task, id, self.location) from None
            if not self._checkpoints[task]:
                del self._checkpoints[task]

    def list(self, task: str) -> CheckpointInfos:
        with self._lock:
            infos = [copy_metadata(info) for info, _ in self._checkpoints.get(task, {}).values()]
        infos.sort(key=creation_order, reverse=True)
        return infos

    def ids(self, task: str) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._checkpoints.get(task, ()))

    def quarantine(self, task: str, id: str) -> None:
        self.quarantined.append((task, id, self.get(task, id)))
        self.delete(task, id)

    def tasks(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(self._checkpoints))
