"""The contract of a store, and the base of stores that wrap another one."""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import msgspec

from ckpt_observe.core.format import container
from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.query import Query
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, ConflictError
from ckpt_observe.support.advice import add_advice

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


class Capabilities(NamedTuple):
    """What a store guarantees and supports."""

    durability: str
    """What a checkpoint survives after `put`: `nothing`, the end of the `process`, of the `machine`, or what the `server` is set to."""
    writers: str
    """What may write at the same time: `threads` of one process, `processes` of one machine, or several `hosts`."""
    max_size: int | None = None
    """Size of the largest possible checkpoint in bytes; None if only the medium limits it."""
    reads_ranges: bool = False
    """Whether `get_range` reads less than the whole checkpoint."""
    has_index: bool = False
    """Whether `find` uses an index instead of reading every header."""


class Store(ABC):
    """Stores checkpoints by task and id. A checkpoint is written once and never changed.

    Errors are CheckpointErrors, or ConfigErrors if the store is set up wrongly. All methods may be called from several threads.
    """

    kind: str
    capabilities: Capabilities

    def __init__(self, location: str) -> None:
        self.location = location
        """Address of the store for messages and logs, without credentials."""

    @abstractmethod
    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        """Store a checkpoint. When this returns, it is durable as `capabilities` says.

        When this raises, nothing was stored, unless the answer of a server was lost.
        ConflictError if the id exists. If two writers use the same id at the same moment, one of them succeeds.
        """

    @abstractmethod
    def get(self, task: str, id: str) -> Buffer:
        """Return all bytes of a checkpoint, unchecked. CheckpointNotFoundError if it does not exist."""

    @abstractmethod
    def delete(self, task: str, id: str) -> None:
        """Remove a checkpoint durably. CheckpointNotFoundError if it does not exist."""

    def discard(self, task: str, id: str) -> None:
        """Remove a checkpoint without a sync: after a power failure it may exist again. For retention, which runs after each save."""
        self.delete(task, id)

    @abstractmethod
    def list(self, task: str) -> CheckpointInfos:
        """Return the headers of a task's checkpoints, newest first, without damaged ones."""

    @abstractmethod
    def ids(self, task: str) -> tuple[str, ...]:
        """Return the ids of all checkpoints of a task, including damaged ones, in any order."""

    def newest(self, task: str) -> str | None:
        """Return the id of the newest checkpoint, damaged or not; None if there is none. A load must report damage, not use an older state.

        This default assumes that any checkpoint with an unreadable header may be the newest. Stores that know times of writing override it.
        """
        infos = self.list(task)
        unreadable = set(self.ids(task)).difference(info.id for info in infos)
        return max(unreadable) if unreadable else infos[0].id if infos else None

    @abstractmethod
    def tasks(self) -> tuple[str, ...]:
        """Return the names of all tasks that have checkpoints, sorted."""

    @abstractmethod
    def quarantine(self, task: str, id: str) -> None:
        """Move a checkpoint aside without losing its bytes. It is no longer listed or loaded; its id can be used again."""

    def put_many(self, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        """Store several checkpoints in order, if possible with fewer syncs than one by one. After an error, some or none are stored."""
        for info, blob in batch:
            self.put(info, blob)

    def info(self, task: str, id: str) -> CheckpointInfo:
        """Return the header of a checkpoint, after checking its seal."""
        return container.read_header(self.get(task, id))

    def size(self, task: str, id: str) -> int:
        """Return the stored size of a checkpoint in bytes."""
        return len(self.get(task, id))

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        """Return `size` bytes of a checkpoint from `start`, or fewer if it ends earlier."""
        return self.get(task, id)[start : start + size]

    def find(self, query: Query) -> CheckpointInfos:
        """Return the headers that match a query, newest first. This default reads every header; stores with an index override it."""
        tasks = self.tasks() if query.task is None else (query.task,)
        matches = [info for task in tasks for info in self.list(task) if query.matches(info)]
        matches.sort(key=creation_order, reverse=True)
        return matches[: query.limit]

    def close(self) -> None:  # noqa: B027 - most stores hold nothing
        """Release connections. May be called twice. Do not use the store afterwards; the SQL stores then raise StorageError."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class StoreWrapper(Store):
    """Passes every call to an inner store. Subclasses override what they change."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner.location)
        self.inner = inner
        self.kind = inner.kind
        self.capabilities = inner.capabilities

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


def already_exists(task: str, id: str) -> ConflictError:
    return ConflictError(add_advice(f"{task!r} already has a checkpoint {id!r}", "conflict.exists"))


def not_found(task: str, id: str | None, location: str) -> CheckpointNotFoundError:
    """Return the error for a missing checkpoint or, if `id` is None, for a task without any."""
    name = "" if id is None else f" {id!r}"
    return CheckpointNotFoundError(add_advice(f"{task!r} has no checkpoint{name} in {location}", "not_found.checkpoint"))


def copy_metadata(info: CheckpointInfo) -> CheckpointInfo:
    """Return a cached header with a new copy of its metadata, because the caller may change that."""
    return msgspec.structs.replace(info, metadata=msgspec.to_builtins(info.metadata)) if info.metadata else info


def creation_order(info: CheckpointInfo) -> tuple[object, str]:
    """Return the sort key of a header: its time, then its id. Sorts oldest first."""
    return info.created, info.id


def to_microseconds(time: dt.datetime) -> int:
    """Return microseconds since 1970, as databases store times."""
    return (time - _EPOCH) // _MICROSECOND


def decode_headers(rows: Iterable[tuple[str, str, Buffer]]) -> CheckpointInfos:
    """Return the headers in rows of task, id and header, without those that are damaged or belong to another row."""
    infos = []
    for task, id, header in rows:
        if not isinstance(header, Buffer):
            continue
        try:
            info = container.read_header(header)
        except CheckpointError:
            continue
        if info.task == task and info.id == id:
            infos.append(info)
    return infos
