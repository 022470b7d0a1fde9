"""Counts the operations of a task. They become attributes of the task when it ends."""

from __future__ import annotations

from threading import get_ident
from typing import Any, Final

from ckpt_observe.semconv import attributes as names

_WRITING: Final = ("save", "append")
"""For these, the stored size is what the operation added. For a load, it is what it read."""


class OperationCounts:
    """The operations of one task: their number and failures by kind, and the bytes that they stored.

    Each thread has its own totals, so operations in several threads need no lock and none of them is lost.
    """

    __slots__ = ("_by_thread",)

    def __init__(self) -> None:
        self._by_thread: dict[int, dict[str, list[int]]] = {}
        """Number, failures and stored bytes of each kind of operation, by thread."""

    def add(self, operation: str, outcome: Any, stored: Any) -> None:
        """Count one operation. `outcome` is None if it succeeded; a skipped one does not count."""
        if outcome == "skipped":
            return
        thread = get_ident()
        totals = self._by_thread.get(thread)
        if totals is None:
            totals = self._by_thread[thread] = {}
        total = totals.get(operation)
        if total is None:
            total = totals[operation] = [0, 0, 0]
        total[0] += 1
        if outcome == "error":
            total[1] += 1
        elif type(stored) is int and operation in _WRITING:
            total[2] += stored

    def attributes(self) -> dict[str, Any]:
        """Return the counts as attributes of the task, the most frequent operation first; nothing if there were no operations."""
        sums: dict[str, list[int]] = {}
        for totals in self._by_thread.copy().values():
            for operation, total in totals.copy().items():
                sums[operation] = [sum(pair) for pair in zip(sums.get(operation, (0, 0, 0)), total, strict=True)]
        if not sums:
            return {}
        operations = sorted(sums, key=lambda operation: (-sums[operation][0], operation))
        return {
            names.TASK_OPERATIONS: operations,
            names.TASK_COUNTS: [sums[operation][0] for operation in operations],
            names.TASK_FAILURES: [sums[operation][1] for operation in operations],
            names.TASK_STORED: sum(total[2] for total in sums.values()),
        }
