"""The Checkpointer, the main class of the core: saves, loads, lists, removes and verifies checkpoints."""

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
from ckpt_observe.core.hooks import Event, Hook, emit, notify_around
from ckpt_observe.core.impacts import add_impact
from ckpt_observe.core.loading import references
from ckpt_observe.core.loading.drill import Drill, rehearse_restore
from ckpt_observe.core.loading.fetch import Fetcher
from ckpt_observe.core.loading.lazy import LazyState
from ckpt_observe.core.loading.verify import Finding, verify
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos, Restored
from ckpt_observe.core.plugins import codecs, serializers
from ckpt_observe.core.query import Query
from ckpt_observe.core.retention import Decision, KeepAll, KeepLast, Retention
from ckpt_observe.core.saving.batch import Batch
from ckpt_observe.core.saving.draft import Drafter, Label, Staged
from ckpt_observe.core.saving.pipeline import Pipeline
from ckpt_observe.core.saving.task_listing import TaskListing
from ckpt_observe.core.serializers import Serializer
from ckpt_observe.core.stores import Store, open_store
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, ConfigError, ConflictError
from ckpt_observe.support.host_exceptions import raise_host_exception


class Checkpointer:
    """Saves states of tasks in a store and loads them unchanged, or raises an error. Thread-safe."""

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
        """Open the store, which is a URL, a path or a Store.

        `incremental` is how many earlier checkpoints a new one may refer to for unchanged keys; with 0, each holds its whole state.
        `keep_last=n` adds `KeepLast(n)` to `retention`. With `fallback`, loading the newest checkpoint skips damaged ones.
        """
        _check_arguments(encryption, retention, incremental, hooks)
        self.store = open_store(store)
        codec = None if compression == "none" else codecs.factory(compression)()
        self.pipeline = Pipeline(serializers.factory(format)(), codec, encryption)
        last = None if keep_last is None else KeepLast(keep_last)
        self.retention = last | retention if last and retention else last or retention
        self.hooks = tuple(hooks)
        self._fetcher = Fetcher(self.store, self.pipeline, fallback=fallback)
        self._listing = TaskListing(self.store)
        self._drafter = Drafter(self.store, self.pipeline, incremental)

    @property
    def serializer(self) -> Serializer:
        """The serializer of new checkpoints."""
        return self.pipeline.serializer

    @property
    def codec(self) -> Codec | None:
        """The codec of new checkpoints; None if they are not compressed."""
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
        """Save the state as a new checkpoint of the task. When this returns, it is as durable as the store guarantees.

        `state` may be the result of `stage`. `parent` defaults to the checkpoint of the task that this Checkpointer saved or loaded last.
        """
        try:
            label = self._drafter.label(task, id, step, status, metadata, tags, parent)
            if not self.hooks:
                info = self._save(label, state)
            else:
                with notify_around(self.hooks, "save", task, id=label.id, step=step, status=status) as handled:
                    info = self._save(label, state)
                    handled.append(info)
        except CheckpointError as error:
            add_impact(error, "save")
            raise
        if self.retention is not None:
            steps.retain(self._retain, info)
        return info

    def stage(self, state: Any) -> Staged:
        """Serialize a state now, to save it later or on another thread with `save(task, staged)`."""
        try:
            return self._drafter.stage(state)
        except CheckpointError as error:
            add_impact(error, "save")
            raise

    def batch(self) -> Batch:
        """Collect small saves: `with checkpointer.batch() as batch: batch.save(...)` writes them together at its end."""
        return Batch(self.store, self._drafter, self.hooks, self._retain_batch)

    def load(self, task: str, id: str | None = None) -> Any:
        """Return the state of the checkpoint with this id, or of the newest. IntegrityError if it is damaged; see also `fallback`."""
        return self._fetch("load", task, id).state

    def restore(self, task: str, id: str | None = None, *, into: Any = None) -> Restored[Any]:
        """Like `load`, but return the header and the next step, too.

        `into` receives the state as well: the content of a mapping is replaced, `load_state_dict` of an object or a function is called.
        """
        return self._fetch("restore", task, id, into)

    def drill(self, task: str) -> Drill:
        """Rehearse a restart: read, check and decode the newest checkpoint as `restore` does, without using it."""
        return rehearse_restore(self._fetcher, check_name(task, "task"))

    def delete(self, task: str, id: str) -> CheckpointInfo | None:
        """Remove a checkpoint and return its header; None if that is unreadable. ConflictError if an incremental one refers to it."""
        check_name(task, "task")
        try:
            with notify_around(self.hooks, "delete", task, id=check_name(id, "checkpoint id")):
                return self._delete(task, id)
        except CheckpointError as error:
            add_impact(error, "delete")
            raise

    def _delete(self, task: str, id: str) -> CheckpointInfo | None:
        infos = steps.list_task(self.store, task)
        dependent = next((info.id for info in infos if id in info.bases), None)
        if dependent is not None:
            message = f"checkpoint {dependent!r} of {task!r} is built on {id!r}; delete {dependent!r} first"
            raise ConflictError(message, code="conflict.in_use")
        steps.remove(lambda: self.store.delete(task, id))
        self._listing.remove(task, {id})
        return next((info for info in infos if info.id == id), None)

    def list(self, task: str) -> CheckpointInfos:
        """Return the headers of a task's checkpoints, newest first, without damaged headers."""
        return steps.list_task(self.store, check_name(task, "task"))

    def find(self, query: Query) -> CheckpointInfos:
        """Return the headers of all checkpoints that match the query, newest first, from every task unless `query.task` is set."""
        return steps.find(self.store, query)

    def resolve(self, task: str, reference: str) -> CheckpointInfo:
        """Return the header of a checkpoint by reference: an id, `latest`, `latest~2`, `step:100` or `at:2026-01-31T12:00Z`."""
        return references.resolve(self._fetcher, check_name(task, "task"), check_name(reference, "reference"))

    def open(self, task: str, id: str | None = None) -> LazyState:
        """Return the state of the newest checkpoint, or of the one with this id, as a mapping that reads each key on demand."""
        info = self._fetcher.newest(task) if id is None else self._fetcher.info(check_name(task, "task"), check_name(id, "checkpoint id"))
        return LazyState(self._fetcher, info)

    def fork(self, task: str, new_task: str, id: str | None = None) -> CheckpointInfo:
        """Save the state of a checkpoint of `task` (by default the newest) as a checkpoint of `new_task`, and return its header."""
        head = self._drafter.heads.get(task)
        restored = self.restore(task, id)
        self._drafter.heads.reset(task, head)  # the restore must not change the parent of this task's next checkpoint
        origin = restored.info
        return self.save(
            new_task, restored.state, step=origin.step, status=origin.status, metadata=origin.metadata, tags=origin.tags, parent=origin
        )

    def plan(self, task: str) -> Sequence[Decision]:
        """Return what `prune` would do with each checkpoint of the task, and why. Nothing is removed."""
        return policies.plan(self._policy, steps.list_task(self.store, check_name(task, "task")), dt.datetime.now(dt.UTC))

    @property
    def _policy(self) -> Retention:
        return self.retention or KeepAll()

    def prune(self, task: str, plan: Sequence[Decision] | None = None, *, _current: bool = False) -> CheckpointInfos:
        """Remove the checkpoints that the retention policy does not keep, or those that `plan` does not keep. Return the removed ones.

        A checkpoint to which a kept one refers (`incremental`) stays, even if `plan` says otherwise. `_current` skips this check.
        """
        candidates = [decision.info for decision in (self.plan(task) if plan is None else plan) if not decision.keep]
        if plan is not None and not _current:
            candidates = policies.without_bases(candidates, steps.list_task(self.store, check_name(task, "task")))
        return steps.remove(lambda: self._remove_all(task, candidates))

    def _remove_all(self, task: str, candidates: Sequence[CheckpointInfo]) -> CheckpointInfos:
        """Remove these checkpoints. Return those that existed."""
        removed, absent_ids = [], set()
        try:
            for info in candidates:  # newest first: an incremental checkpoint before its bases
                with notify_around(self.hooks, "delete", task, id=info.id):
                    if self._discard(task, info.id):
                        removed.append(info)
                absent_ids.add(info.id)
        finally:
            self._listing.remove(task, absent_ids)
        return removed

    def verify(
        self, task: str | None = None, id: str | None = None, *, sample: int | None = None, quarantine: bool = False
    ) -> Sequence[Finding]:
        """Read and check one checkpoint, those of a task, or all; `sample` limits it to that many at random.

        `quarantine` moves damaged ones aside.
        """
        return verify(self._fetcher, task, id, sample=sample, quarantine=self._quarantine if quarantine else None)

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _fetch(self, operation: str, task: str, id: str | None, into: Any = None) -> Restored[Any]:
        check_name(task, "task")
        if not self.hooks:
            return self._load(task, id, into)
        with notify_around(self.hooks, operation, task, id=id) as handled:
            restored = self._load(task, id, into)
            handled.append(restored.info)
        return restored

    def _load(self, task: str, id: str | None, into: Any) -> Restored[Any]:
        try:
            restored = self._fetcher.newest_good(task) if id is None else self._fetcher.load(task, check_name(id, "checkpoint id"))
        except CheckpointError as error:
            add_impact(error, "load")
            raise
        if into is not None:
            steps.apply(into, restored.state)
        self._drafter.heads.set(restored.info)
        return restored

    def _save(self, label: Label, state: Any) -> CheckpointInfo:
        info, blob = self._drafter.draft(label, state)
        steps.write(self.store, info, blob)
        steps.confirm(self.store, info, blob)
        self._drafter.heads.set(info)
        return info

    def _retain(self, saved: CheckpointInfo) -> None:
        """Apply retention after a save. A failure here does not fail the save, and the saved checkpoint always stays."""
        try:
            decisions = policies.removals(self._policy, self._listing.add(saved), dt.datetime.now(dt.UTC))
            if plan := [decision for decision in decisions if decision.info.id != saved.id]:
                self.prune(saved.task, plan, _current=True)
        except Exception as error:  # the policy may be user code
            raise_host_exception(error)
            logging.getLogger(__name__).warning("Saved a checkpoint of %r, but could not remove old ones: %r", saved.task, error)
            emit(self.hooks, Event(moment="failed", operation="prune", task=saved.task, error=error))

    def _retain_batch(self, newest: CheckpointInfo) -> None:
        if self.retention is not None:
            self._listing.forget(newest.task)  # the list does not have the other checkpoints of the batch
            steps.retain(self._retain, newest)

    def _discard(self, task: str, id: str) -> bool:
        try:
            self.store.discard(task, id)
        except CheckpointNotFoundError:
            return False  # another process removed it first
        return True

    def _quarantine(self, task: str, id: str) -> None:
        self.store.quarantine(task, id)
        self._listing.remove(task, {id})


def _check_arguments(encryption: Any, retention: Any, incremental: Any, hooks: Sequence[Any]) -> None:
    if not isinstance(incremental, SupportsIndex) or incremental < 0:  # type: ignore[operator]
        raise ConfigError(f"`incremental` must be an integer of 0 or more (earlier checkpoints to refer to), not {incremental!r:.80}")
    if incremental and encryption:
        raise ConfigError("`incremental` and `encryption` exclude each other: incremental saves need digests, which confirm guessed values")
    if not isinstance(retention, Retention | None):
        raise ConfigError(f"`retention` must be a policy such as KeepLast(5), not {retention!r:.80}")
    if not isinstance(encryption, Cipher | None):
        raise ConfigError(f"`encryption` must be a cipher such as AeadCipher(), not {encryption!r:.80}")
    if not all(map(callable, hooks)):
        raise ConfigError(f"`hooks` must be a sequence of functions, not {hooks!r:.80}")
