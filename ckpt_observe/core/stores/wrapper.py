"""A store around a store: passes everything through. Decorators inherit it and change what they are about."""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.query import Query
from ckpt_observe.core.stores.base import Store


class StoreWrapper(Store):
    """The inner store, seen from outside."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner.location)
        self.inner = inner
        self.kind = inner.kind
        self.promise = inner.promise

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        self.inner.put(info, blob)

    def put_many(self, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        self.inner.put_many(batch)

    def get(self, task: str, id: str) -> Buffer:
        return self.inner.get(task, id)

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        return self.inner.get_range(task, id, start, size)

    def info(self, task: str, id: str) -> CheckpointInfo:
        return self.inner.info(task, id)

    def size(self, task: str, id: str) -> int:
        return self.inner.size(task, id)

    def delete(self, task: str, id: str) -> None:
        self.inner.delete(task, id)

    def discard(self, task: str, id: str) -> None:
        self.inner.discard(task, id)

    def quarantine(self, task: str, id: str) -> None:
        self.inner.quarantine(task, id)

    def list(self, task: str) -> CheckpointInfos:
        return self.inner.list(task)

    def find(self, query: Query) -> CheckpointInfos:
        return self.inner.find(query)

    def ids(self, task: str) -> tuple[str, ...]:
        return self.inner.ids(task)

    def newest(self, task: str) -> str | None:
        return self.inner.newest(task)

    def tasks(self) -> tuple[str, ...]:
        return self.inner.tasks()

    def close(self) -> None:
        self.inner.close()
