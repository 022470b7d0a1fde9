"""Which checkpoints of a run were deleted or found damaged after they had been saved."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ckpt_observe.query.results import ObservedOperation
from ckpt_observe.semconv import attributes as names

_READ: Final = ("load", "restore", "verify", "drill")


class LostCheckpoints:
    """What was lost in one run, and when: a checkpoint that is saved again under the same id, such as `latest.pt`, is not lost."""

    def __init__(self, operations: Iterable[ObservedOperation]) -> None:
        """`operations` are those of the run, in any order; saves among them do not matter."""
        self._lost: dict[str | None, int] = {}
        """When each checkpoint was lost, in Unix nanoseconds. None stands for those without an id."""
        self._run_deleted = 0
        """When all checkpoints of the run were deleted."""
        for operation in operations:
            end = operation.end_unix_nano or 0
            is_deleted = operation.name == "delete" and operation.outcome == "ok"
            is_damaged = operation.name in _READ and operation.attributes.get(names.ERROR_CLASS) == "integrity"
            if operation.name in ("delete", "prune") and operation.outcome == "ok" and operation.attributes.get(names.WHOLE_TASK) is True:
                self._run_deleted = max(end, self._run_deleted)
            elif is_deleted or is_damaged:
                self._lost[operation.checkpoint_id] = max(end, self._lost.get(operation.checkpoint_id, 0))

    def contains(self, save: ObservedOperation) -> bool:
        """Return whether the checkpoint of a save was lost since."""
        return (save.end_unix_nano or 0) <= self._lost.get(save.checkpoint_id, 0) or self.run_is_deleted_after(save)

    def run_is_deleted_after(self, save: ObservedOperation) -> bool:
        """Return whether all checkpoints of the run were deleted after a save, as LangGraph's `delete_thread` does."""
        return (save.end_unix_nano or 0) <= self._run_deleted
