"""A batch of small saves that become durable together, with fewer waits for the disk.

Each state is serialized by `save`. Nothing is written before the `with` block ends, and nothing at all if it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

from ckpt_observe.core import steps
from ckpt_observe.core.format.blob import Blob
from ckpt_observe.core.hooks import Event, Hook, emit
from ckpt_observe.core.impacts import add_impact
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.saving.draft import Drafter, Label, Staged
from ckpt_observe.core.stores import Store
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError


class _Draft(NamedTuple):
    """A checkpoint to write. `source` is set if it is incremental: it is drafted again if a base is removed before the write."""

    info: CheckpointInfo
    blob: Blob
    source: tuple[Label, Staged] | None


class Batch:
    """Collects saves and writes them together. Not thread-safe. Created by `Checkpointer.batch`."""

    def __init__(self, store: Store, drafter: Drafter, hooks: Sequence[Hook], retain: Callable[[CheckpointInfo], None]) -> None:
        self._store = store
        self._drafter = drafter
        self._hooks = hooks
        self._retain = retain
        self._drafts: list[_Draft] = []
        self._newest: dict[str, CheckpointInfo] = {}
        self._failed = False

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
        """Add a checkpoint to the batch, with the arguments of `Checkpointer.save`. It becomes durable in `commit`."""
        parent = parent or self._newest.get(task) or self._drafter.heads.get(task)
        try:
            label = self._drafter.label(task, id, step, status, metadata, tags, parent)
            draft = self._create_draft(label, self._drafter.stage(state))  # staged: the live state may change before the block ends
        except CheckpointError as error:
            add_impact(error, "save")
            raise
        self._drafts.append(draft)
        self._newest[task] = draft.info
        return draft.info

    def commit(self) -> None:
        """Write all checkpoints of the batch. Called when the `with` block ends.

        After an error they stay in the batch: call `commit` again once the cause is fixed. Those that the store has already are not
        written again.
        """
        self._notify("before", self._drafts)
        try:
            self._write()
            for info, blob, _ in self._drafts:
                steps.confirm(self._store, info, blob)
                self._drafter.heads.set(info)
        except BaseException as error:
            self._failed = True
            if isinstance(error, CheckpointError):
                add_impact(error, "commit")
            self._notify("failed", self._drafts, error)
            raise
        drafts, self._drafts, self._newest, self._failed = self._drafts, [], {}, False
        self._notify("after", drafts)
        for newest in {info.task: info for info, *_ in drafts}.values():
            self._retain(newest)

    def _create_draft(self, label: Label, staged: Staged) -> _Draft:
        info, blob = self._drafter.draft(label, staged)
        return _Draft(info, blob, (label, staged) if info.bases else None)

    def _write(self) -> None:
        """Write all drafts that an earlier attempt has not written. Draft those again whose base no longer exists."""
        bases = {(info.task, base) for info, *_ in self._drafts for base in info.bases}
        removed_bases = {base for base in bases if not self._exists(*base)}
        unwritten = []
        for n, draft in enumerate(self._drafts):
            if self._failed and self._is_written(draft):
                continue
            if draft.source and any((draft.info.task, base) in removed_bases for base in draft.info.bases):
                self._drafts[n] = self._create_draft(*draft.source)
            unwritten.append(self._drafts[n][:2])
        steps.write_many(self._store, unwritten)

    def _is_written(self, draft: _Draft) -> bool:
        try:
            return bytes(self._store.get(draft.info.task, draft.info.id)) == bytes(draft.blob)
        except CheckpointNotFoundError:
            return False

    def _exists(self, task: str, id: str) -> bool:
        try:
            return self._store.size(task, id) > 0
        except CheckpointNotFoundError:
            return False

    def _notify(self, moment: str, drafts: Sequence[_Draft], error: BaseException | None = None) -> None:
        if self._hooks:
            self._call_hooks(moment, drafts, error)

    def _call_hooks(self, moment: str, drafts: Sequence[_Draft], error: BaseException | None) -> None:
        for info, *_ in drafts:
            details: dict[str, Any] = {"id": info.id, "step": info.step, "status": info.status, "info": info if moment == "after" else None}
            emit(self._hooks, Event(moment=moment, operation="save", task=info.task, error=error, **details))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.commit()
