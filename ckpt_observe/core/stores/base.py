"""The contract of a store: whole checkpoints in, whole checkpoints out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from ckpt_observe.core import container
from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.query import Query
from ckpt_observe.core.registry import Registry


class Promise(NamedTuple):
    """What a store promises and can do, as data."""

    durable: str
    """What a checkpoint survives once `put` has returned: `nothing`, `process`, `machine` or `server`."""
    shared: str
    """Who may write at once: `threads`, `processes` or `hosts`."""
    largest: int | None = None
    """Bytes of the largest checkpoint that it takes; None: as large as the medium."""
    ranged: bool = False
    """Whether part of a checkpoint is read without the whole."""
    indexed: bool = False
    """Whether a query asks an index, instead of every header."""


class Store(ABC):
    """Keeps checkpoints by task and id. Checkpoints are written once and never changed.

    Every error is a CheckpointError. All methods may be called from several threads.
    """

    kind: str
    promise: Promise

    def __init__(self, location: str) -> None:
        self.location = location
        """Where it is, for people and logs: without credentials."""

    @abstractmethod
    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        """Keep it. When this returns it is as durable as promised; when it raises, it is not there.

        An id that is taken is ConflictError, also when two write it at the same moment: one wins.
        """

    @abstractmethod
    def get(self, task: str, id: str) -> Buffer:
        """All bytes of a checkpoint; CheckpointNotFoundError if there is none. They are not checked here."""

    @abstractmethod
    def delete(self, task: str, id: str) -> None:
        """Remove it for good; CheckpointNotFoundError if there is none."""

    def discard(self, task: str, id: str) -> None:
        """Remove it without waiting for the medium: after a power cut it may be there again. Retention runs after each save."""
        self.delete(task, id)

    @abstractmethod
    def list(self, task: str) -> CheckpointInfos:
        """The checkpoints of a task, newest first. Those whose header is damaged are left out."""

    @abstractmethod
    def ids(self, task: str) -> tuple[str, ...]:
        """Ids of all checkpoints of a task, also of damaged ones, in no order."""

    def newest(self, task: str) -> str | None:
        """Id of the newest checkpoint of a task, damaged or not: who loads it shall hear of the damage, not get an older state.

        Here any whose header does not read may be the newest; stores that know when it was written do better.
        """
        infos = self.list(task)
        unreadable = set(self.ids(task)).difference(info.id for info in infos)
        return max(unreadable) if unreadable else infos[0].id if infos else None

    @abstractmethod
    def tasks(self) -> tuple[str, ...]:
        """Names of the tasks that have checkpoints, sorted."""

    @abstractmethod
    def quarantine(self, task: str, id: str) -> None:
        """Move a checkpoint out of the way without losing its bytes: it is no longer listed nor loaded, and its id is free."""

    def put_many(self, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        """Keep several, with fewer waits for the medium than one by one where the store can. In order; an error leaves the rest out."""
        for info, blob in batch:
            self.put(info, blob)

    def info(self, task: str, id: str) -> CheckpointInfo:
        """The header alone, checked."""
        return container.read_header(self.get(task, id))

    def size(self, task: str, id: str) -> int:
        """How many bytes are kept under that id."""
        return len(self.get(task, id))

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        """`size` bytes of a checkpoint from `start`; fewer where it ends before."""
        return self.get(task, id)[start : start + size]

    def find(self, query: Query) -> CheckpointInfos:
        """The checkpoints that a query asks for, newest first. Here by looking at each; stores with an index do better."""
        tasks = self.tasks() if query.task is None else (query.task,)
        found = [info for task in tasks for info in self.list(task) if query.matches(info)]
        found.sort(key=newest_first, reverse=True)
        return found[: query.limit]

    def close(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back what the store holds. May be called twice. One that held a connection cannot be used afterwards: StorageError."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


stores: Registry[Store] = Registry(
    "store",
    {
        "memory": "ckpt_observe.core.stores.memory:MemoryStore",
        "file": "ckpt_observe.core.stores.file:FileStore",
        "az": "ckpt_observe.core.stores.objects:ObjectStore",
        "git": "ckpt_observe.core.stores.git:GitStore",
        "gs": "ckpt_observe.core.stores.objects:ObjectStore",
        "jsonl": "ckpt_observe.core.stores.jsonl:JsonlStore",
        "postgres": "ckpt_observe.core.stores.postgres:PostgresStore",
        "postgresql": "ckpt_observe.core.stores.postgres:PostgresStore",
        "redis": "ckpt_observe.core.stores.redis_:RedisStore",
        "rediss": "ckpt_observe.core.stores.redis_:RedisStore",
        "s3": "ckpt_observe.core.stores.objects:ObjectStore",
        "sqlite": "ckpt_observe.core.stores.sqlite:SqliteStore",
    },
    entry_point_group="ckpt_observe.stores",
)
"""Factories by URL scheme, which take the URL. Other packages add theirs through entry points and test them with `StoreContract`."""


def own(info: CheckpointInfo) -> CheckpointInfo:
    """A remembered header for who asks, with metadata of his own: he may change them."""
    return msgspec.structs.replace(info, metadata=msgspec.to_builtins(info.metadata)) if info.metadata else info


def newest_first(info: CheckpointInfo) -> tuple[object, str]:
    """Sort key; use with reverse=True."""
    return info.created, info.id
