"""The Checkpointer: the order of the steps, and nothing else."""

from __future__ import annotations

import datetime as dt
import os
import secrets
import threading
import time
from types import TracebackType
from typing import Any, Self

from ckpt_observe.core import container, context, digests, steps
from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.codecs import Codec, codecs
from ckpt_observe.core.model import FORMAT_VERSION, CheckpointInfo, CheckpointInfos, Restored
from ckpt_observe.core.names import checked
from ckpt_observe.core.serializers import Document, Serializer, serializers
from ckpt_observe.core.stores import Store, locate
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, CompatibilityError, IntegrityError

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Checkpointer:
    """Saves states of tasks in a store and brings them back, the same or not at all."""

    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        *,
        format: str = "json",
        compression: str = "none",
        keep_last: int | None = None,
        fallback: bool = False,
    ) -> None:
        """`fallback` allows `load` and `restore` to pass over damaged checkpoints to the newest good one."""
        self.store = locate(store)
        self.serializer: Serializer = serializers.factory(format)()
        self.codec: Codec | None = None if compression == "none" else codecs.factory(compression)()
        self.keep_last = keep_last
        self.fallback = fallback
        self._clock = _Clock()

    def save(
        self,
        task: str,
        state: Any,
        *,
        step: int | None = None,
        id: str | None = None,
        status: str = "running",
        metadata: dict[str, Any] | None = None,
        parent: str | None = None,
    ) -> CheckpointInfo:
        """Make the state durable as a new checkpoint of the task. When this returns, it survives a crash."""
        checked(task, "task")
        created = self._clock.now()
        document = steps.serialize(self.serializer, state)
        payload = self._pack(document)
        info = CheckpointInfo(
            version=FORMAT_VERSION,
            id=_new_id(created) if id is None else checked(id, "checkpoint id"),
            task=task,
            step=step,
            status=status,
            created=created,
            format=self.serializer.name,
            codec="none" if self.codec is None else self.codec.name,
            serialized_size=len(document),
            payload_size=len(payload),
            digest=digests.of(payload),
            state_type=type(state).__name__,
            keys=document.keys,
            parent=parent,
            context=context.gather(),
            metadata=metadata or {},
        )
        blob = container.pack(info, payload)
        steps.write(self.store, info, blob)
        steps.confirm(self.store, info, blob)
        if self.keep_last is not None:
            self._retain(task)
        return info

    def load(self, task: str, id: str | None = None) -> Any:
        """The state of the newest checkpoint of the task, or of the one with that id."""
        return self._fetch(task, id).state

    def restore(self, task: str, id: str | None = None, *, into: Any = None) -> Restored[Any]:
        """The state with where to go on; put `into` a mapping, an object with `load_state_dict`, or given to a function."""
        restored = self._fetch(task, id)
        if into is not None:
            steps.apply(into, restored.state)
        return restored

    def delete(self, task: str, id: str) -> None:
        """Remove one checkpoint."""
        self.store.delete(checked(task, "task"), checked(id, "checkpoint id"))

    def list(self, task: str) -> CheckpointInfos:
        """The checkpoints of a task, newest first."""
        return self.store.list(checked(task, "task"))

    def prune(self, task: str) -> CheckpointInfos:
        """Remove what is no longer kept; returns what was removed."""
        removed = []
        for info in self._surplus(task):
            try:
                self.store.delete(task, info.id)
            except CheckpointNotFoundError:
                continue  # somebody else was faster
            removed.append(info)
        return removed

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _pack(self, document: Document) -> Blob:
        if self.codec is None:
            return document
        return Blob((steps.compress(self.codec, _joined(document)),))

    def _fetch(self, task: str, id: str | None) -> Restored[Any]:
        checked(task, "task")
        if id is not None:
            return self._fetch_one(task, checked(id, "checkpoint id"))
        skipped: list[str] = []
        for info in self.store.list(task):
            try:
                return self._fetch_one(task, info.id, tuple(skipped))
            except IntegrityError as error:
                if not self.fallback:
                    raise
                error.recovery = "passed over to the checkpoint before it"
                skipped.append(info.id)
        raise CheckpointNotFoundError(f"{task!r} has no {'good ' if skipped else ''}checkpoint in {self.store.location}")

    def _fetch_one(self, task: str, id: str, skipped: tuple[str, ...] = ()) -> Restored[Any]:
        stored = steps.read(self.store, task, id)
        info, payload = container.split(stored)
        if (info.task, info.id) != (task, id):
            message = f"what is kept as checkpoint {id!r} of {task!r} is {info.id!r} of {info.task!r}"
            raise IntegrityError(message, code="integrity.malformed")
        steps.validate(info, payload)
        return Restored(self._unpack(info, payload), info, skipped)

    def _unpack(self, info: CheckpointInfo, payload: Buffer) -> Any:
        if info.codec != "none":
            if info.codec not in codecs:
                raise _foreign(info, f"compression {info.codec!r}")
            payload = steps.decompress(codecs.factory(info.codec)(), payload, info.serialized_size)
        if info.format not in serializers:
            raise _foreign(info, f"format {info.format!r}")
        return steps.deserialize(serializers.factory(info.format)(), payload)

    def _surplus(self, task: str) -> CheckpointInfos:
        return [] if self.keep_last is None else self.store.list(task)[self.keep_last :]

    def _retain(self, task: str) -> None:
        """After a save that is durable: failing to tidy up must not make it a failed one."""
        try:
            if self._surplus(task):
                self.prune(task)
        except CheckpointError:
            pass


class _Clock:
    """Times that always go forward, so that the order of saves is the order of their times."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def now(self) -> dt.datetime:
        with self._lock:
            self._last = max(self._last + 1, time.time_ns() // 1000)
            return _EPOCH + dt.timedelta(microseconds=self._last)


def _new_id(created: dt.datetime) -> str:
    return f"{created:%Y%m%dT%H%M%S.%f}-{secrets.token_hex(4)}"


def _joined(blob: Blob) -> Buffer:
    return blob.pieces[0] if len(blob.pieces) == 1 else bytes(blob)


def _foreign(info: CheckpointInfo, what: str) -> CompatibilityError:
    return CompatibilityError(f"checkpoint {info.id!r} of {info.task!r} has {what}, which is not here", code="compatibility.unknown_format")
