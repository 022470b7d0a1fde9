"""The Checkpointer: the order of the steps, and nothing else."""

from __future__ import annotations

import datetime as dt
import logging
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, SupportsIndex

from ckpt_observe.core import retention as policies
from ckpt_observe.core import steps
from ckpt_observe.core.ciphers import Cipher
from ckpt_observe.core.codecs import Codec
from ckpt_observe.core.format.names import check_name
from ckpt_observe.core.hooks import Event, Hook, emit, told
from ckpt_observe.core.loading import references
from ckpt_observe.core.loading.fetch import Fetcher
from ckpt_observe.core.loading.lazy import LazyState
from ckpt_observe.core.loading.verify import Finding, examine
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos, Restored
from ckpt_observe.core.plugins import codecs, serializers
from ckpt_observe.core.query import Query
from ckpt_observe.core.retention import Decision, KeepAll, KeepLast, Retention
from ckpt_observe.core.saving.batch import Batch
from ckpt_observe.core.saving.draft import Drafter, Label, Staged
from ckpt_observe.core.saving.pipeline import Pipeline
from ckpt_observe.core.saving.task_listing import Ledger
from ckpt_observe.core.serializers import Serializer
from ckpt_observe.core.stores import Store, open_store
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError, ConflictError


class Checkpointer:
    """Saves states of tasks in a store and brings them back, the same or not at all. May be shared by threads."""

    def __init__(
        self,
        store: str | os.PathLike[str] | Store,
        *,
        format: str = "json",
        compression: str = "none",
        encryption: Cipher | None = None,
        keep_last: int | None = None,
        retention: Retention | None = None,
        incremental: int = 0,
        hooks: Sequence[Hook] = (),
        fallback: bool = False,
    ) -> None:
        """`incremental` is the number of earlier checkpoints one may be built on; `fallback` lets `load` pass over damaged ones."""
        _check_arguments(encryption, retention, incremental, hooks)
        self.store = open_store(store)
        codec = None if compression == "none" else codecs.factory(compression)()
        self.pipeline = Pipeline(serializers.factory(format)(), codec, encryption)
        newest = None if keep_last is None else KeepLast(keep_last)
        self.retention = newest | retention if newest and retention else newest or retention
        self.hooks = tuple(hooks)
        self._fetcher = Fetcher(self.store, self.pipeline, fallback=fallback)
        self._ledger = Ledger(self.store)
        self._drafter = Drafter(self.store, self.pipeline, incremental)

    @property
    def serializer(self) -> Serializer:
        """What new checkpoints are serialized with."""
        return self.pipeline.serializer

    @property
    def codec(self) -> Codec | None:
        """What new checkpoints are compressed with, if anything."""
        return self.pipeline.codec

    def save(
        self,
        task: str,
        state: Any,
        *,
        step: int | None = None,
        id: str | None = None,
        status: str = "running",
        metadata: dict[str, Any] | None = None,
        tags: Sequence[str] = (),
        parent: CheckpointInfo | None = None,
    ) -> CheckpointInfo:
        """Make the state durable as a new checkpoint of the task. When this returns, it survives a crash.

        `state` may be what `stage` returned. `parent` is needed only where it is not the checkpoint this program saved or
        loaded last.
        """
        label = self._drafter.label(task, id, step, status, metadata, tags, parent)
        if not self.hooks:
            info = self._saved(label, state)
        else:
            with told(self.hooks, "save", task, id=label.id, step=step, status=status) as done:
                info = self._saved(label, state)
                done.append(info)
        if self.retention is not None:
            self._retain(info)
        return info

    def stage(self, state: Any) -> Staged:
        """Freeze a state now, to save it later or on another thread: `save(task, staged)`."""
        return self._drafter.stage(state)

    def batch(self) -> Batch:
        """Gather small saves: `with checkpointer.batch() as batch: batch.save(...)` makes them durable together."""
        return Batch(self.store, self._drafter, self.hooks, self._retain_batch)

    def load(self, task: str, id: str | None = None) -> Any:
        """The state of the newest checkpoint of the task, or of the one with that id."""
        return self._fetch("load", task, id).state

    def restore(self, task: str, id: str | None = None, *, into: Any = None) -> Restored[Any]:
        """The state with where to go on; put `into` a mapping, an object with `load_state_dict`, or given to a function."""
        return self._fetch("restore", task, id, into)

    def delete(self, task: str, id: str) -> CheckpointInfo | None:
        """Remove one checkpoint and return what it was, None if that could not be read. ConflictError if another is built on it."""
        check_name(task, "task")
        with told(self.hooks, "delete", task, id=check_name(id, "checkpoint id")):
            known = self.store.list(task)
            user = next((info.id for info in known if id in info.bases), None)
            if user is not None:
                raise ConflictError(f"checkpoint {user!r} of {task!r} is built on {id!r}: delete that one first", code="conflict.in_use")
            self.store.delete(task, id)
            self._ledger.removed(task, {id})
        return next((info for info in known if info.id == id), None)

    def list(self, task: str) -> CheckpointInfos:
        """The checkpoints of a task, newest first."""
        return self.store.list(check_name(task, "task"))

    def find(self, query: Query) -> CheckpointInfos:
        """The checkpoints of any task that the query asks for, newest first."""
        return self.store.find(query)

    def resolve(self, task: str, reference: str) -> CheckpointInfo:
        """The checkpoint that is meant by an id, `latest`, `latest~2`, `step:100` or `at:2026-01-31T12:00Z`."""
        return references.resolve(self._fetcher, check_name(task, "task"), check_name(reference, "reference"))

    def open(self, task: str, id: str | None = None) -> LazyState:
        """The state as a mapping that reads each key when it is asked for."""
        info = self._fetcher.newest(task) if id is None else self._fetcher.info(check_name(task, "task"), check_name(id, "checkpoint id"))
        return LazyState(self._fetcher, info)

    def fork(self, task: str, new_task: str, id: str | None = None) -> CheckpointInfo:
        """Begin a new task from a checkpoint of this one."""
        head = self._drafter.heads.get(task)
        restored = self.restore(task, id)
        self._drafter.heads.put(task, head)  # this task goes on from where it was, not from where the other begins
        origin = restored.info
        return self.save(
            new_task, restored.state, step=origin.step, status=origin.status, metadata=origin.metadata, tags=origin.tags, parent=origin
        )

    def plan(self, task: str) -> Sequence[Decision]:
        """What `prune` would do with each checkpoint, and why: the dry run."""
        return policies.plan(self._policy, self.store.list(check_name(task, "task")), dt.datetime.now(dt.UTC))

    @property
    def _policy(self) -> Retention:
        return self.retention or KeepAll()

    def prune(self, task: str, plan: Sequence[Decision] | None = None, *, _current: bool = False) -> CheckpointInfos:
        """Remove what the retention policy no longer keeps, or what a `plan` says; returns what was removed.

        Of a plan made earlier, what others have been built on since stays.
        """
        going = [decision.info for decision in (self.plan(task) if plan is None else plan) if not decision.keep]
        if plan is not None and not _current:
            going = policies.unused(going, self.store.list(check_name(task, "task")))
        removed, gone = [], set()
        try:
            for info in going:  # newest first: what is built on another goes before it
                with told(self.hooks, "delete", task, id=info.id):
                    if self._discarded(task, info.id):
                        removed.append(info)
                gone.add(info.id)
        finally:
            self._ledger.removed(task, gone)
        return removed

    def verify(
        self, task: str | None = None, id: str | None = None, *, sample: int | None = None, quarantine: bool = False
    ) -> Sequence[Finding]:
        """Read and check one checkpoint, those of a task or all, or a random sample; move damaged ones out of the way if asked."""
        return examine(self._fetcher, task, id, sample=sample, move=self._quarantine if quarantine else None)

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _fetch(self, operation: str, task: str, id: str | None, into: Any = None) -> Restored[Any]:
        check_name(task, "task")
        if not self.hooks:
            return self._fetched(task, id, into)
        with told(self.hooks, operation, task, id=id) as done:
            restored = self._fetched(task, id, into)
            done.append(restored.info)
        return restored

    def _fetched(self, task: str, id: str | None, into: Any) -> Restored[Any]:
        restored = self._fetcher.newest_good(task) if id is None else self._fetcher.one(task, check_name(id, "checkpoint id"))
        if into is not None:
            steps.apply(into, restored.state)
        self._drafter.heads.set(restored.info)
        return restored

    def _saved(self, label: Label, state: Any) -> CheckpointInfo:
        info, blob = self._drafter.draft(label, state)
        steps.write(self.store, info, blob)
        steps.confirm(self.store, info, blob)
        self._drafter.heads.set(info)
        return info

    def _retain(self, saved: CheckpointInfo) -> None:
        """After a save that is durable: failing to tidy up must not make it a failed one, nor take it away where a clock went back."""
        try:
            going = policies.removals(self._policy, self._ledger.saved(saved), dt.datetime.now(dt.UTC))
            if plan := [decision for decision in going if decision.info.id != saved.id]:
                self.prune(saved.task, plan, _current=True)
        except Exception as error:  # a policy may be the program's own
            logging.getLogger(__name__).warning("%r was saved, but what is no longer kept was not removed: %r", saved.task, error)
            emit(self.hooks, Event(moment="failed", operation="prune", task=saved.task, error=error))

    def _retain_batch(self, newest: CheckpointInfo) -> None:
        if self.retention is not None:
            self._ledger.forget(newest.task)  # it knows none of the batch
            self._retain(newest)

    def _discarded(self, task: str, id: str) -> bool:
        try:
            self.store.discard(task, id)
        except CheckpointNotFoundError:
            return False  # somebody else was faster, and it is gone all the same
        return True

    def _quarantine(self, task: str, id: str) -> None:
        self.store.quarantine(task, id)
        self._ledger.removed(task, {id})


def _check_arguments(encryption: Any, retention: Any, incremental: Any, hooks: Sequence[Any]) -> None:
    if not isinstance(incremental, SupportsIndex) or incremental < 0:  # type: ignore[operator]
        raise ConfigError(f"`incremental` is the number of checkpoints that one may be built on, 0 or more, not {incremental!r:.80}")
    if incremental and encryption:
        raise ConfigError("incremental checkpoints compare digests of values, which encrypted ones must not show: choose one")
    if not isinstance(retention, Retention | None):
        raise ConfigError(f"`retention` is a policy, such as KeepLast(5), not {retention!r:.80}")
    if not isinstance(encryption, Cipher | None):
        raise ConfigError(f"`encryption` is a cipher, such as AeadCipher(), not {encryption!r:.80}")
    if not all(map(callable, hooks)):
        raise ConfigError(f"`hooks` are functions, not {hooks!r:.80}")
