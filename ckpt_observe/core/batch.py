"""Several small saves that become durable together: fewer waits for the medium.

Each state is serialized when it is given; nothing is in the store before the block ends, and nothing at all if it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from ckpt_observe.core import steps
from ckpt_observe.core.blob import Blob
from ckpt_observe.core.draft import Drafter
from ckpt_observe.core.hooks import Event, Hook, emit
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.stores import Store


class Batch:
    """Saves gathered for one write. Not for several threads."""

    def __init__(self, store: Store, drafter: Drafter, hooks: Sequence[Hook], retain: Callable[[CheckpointInfo], None]) -> None:
        self._store = store
        self._drafter = drafter
        self._hooks = hooks
        self._retain = retain
        self._drafts: list[tuple[CheckpointInfo, Blob]] = []
        self._newest: dict[str, CheckpointInfo] = {}

    def save(self, task: str, state: Any, *, step: int | None = None, id: str | None = None, status: str = "running") -> CheckpointInfo:
        """Add a checkpoint to the batch. It is not durable yet."""
        label = self._drafter.label(task, id, step, status, parent=self._newest.get(task))
        draft = self._drafter.draft(label, self._drafter.stage(state))  # frozen: the live state may change before the block ends
        self._drafts.append(draft)
        self._newest[task] = draft[0]
        return draft[0]

    def commit(self) -> None:
        """Make everything given so far durable."""
        drafts, self._drafts = self._drafts, []
        newest, self._newest = self._newest, {}
        self._tell("before", drafts)
        try:
            steps.write_many(self._store, drafts)
            for info, blob in drafts:
                steps.confirm(self._store, info, blob)
                self._drafter.heads.set(info)
        except BaseException as error:
            self._tell("failed", drafts, error)
            raise
        self._tell("after", drafts)
        for info in newest.values():
            self._retain(info)

    def _tell(self, moment: str, drafts: Sequence[tuple[CheckpointInfo, Blob]], error: BaseException | None = None) -> None:
        for info, _ in drafts if self._hooks else ():
            facts: dict[str, Any] = {"id": info.id, "step": info.step, "status": info.status, "info": info if moment == "after" else None}
            emit(self._hooks, Event(moment=moment, operation="save", task=info.task, error=error, **facts))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.commit()
