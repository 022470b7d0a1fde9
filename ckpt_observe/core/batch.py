"""Several small saves that become durable together: fewer waits for the medium.

Each state is serialized when it is given; nothing is in the store before the block ends, and nothing at all if it raises.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from ckpt_observe.core import steps
from ckpt_observe.core.blob import Blob
from ckpt_observe.core.draft import Drafter
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.stores import Store


class Batch:
    """Saves gathered for one write. Not for several threads."""

    def __init__(self, store: Store, drafter: Drafter) -> None:
        self._store = store
        self._drafter = drafter
        self._drafts: list[tuple[CheckpointInfo, Blob]] = []

    def save(self, task: str, state: Any, *, step: int | None = None, id: str | None = None, status: str = "running") -> CheckpointInfo:
        """Add a checkpoint to the batch. It is not durable yet."""
        label = self._drafter.label(task, id, step, status)
        draft = self._drafter.draft(label, self._drafter.stage(state))  # frozen: the live state may change before the block ends
        self._drafts.append(draft)
        return draft[0]

    def commit(self) -> None:
        """Make everything given so far durable."""
        drafts, self._drafts = self._drafts, []
        steps.write_many(self._store, drafts)
        for info, blob in drafts:
            steps.confirm(self._store, info, blob)
            self._drafter.heads.set(info)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.commit()
