"""The data of each page, from the query layer. Every function reads a bounded number of operations, the newest ones."""

from __future__ import annotations

import itertools
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ckpt_observe import libraries
from ckpt_observe.errors import TraceNotFoundError
from ckpt_observe.query import (
    ObservedOperation,
    OperationFilter,
    Progress,
    SavedStep,
    StoreTotals,
    Traces,
    UnobservedProgram,
    measure_progress,
)
from ckpt_observe.query.lost_checkpoints import LostCheckpoints
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.advice import ADVICE
from ckpt_observe.viewer.operation_row import OperationRow, row_of

NEWEST: Final = 2_000
"""Operations that a page considers."""
MAX_ROWS: Final = 200
_MAX_FAILURES: Final = 10
_MAX_HISTORY: Final = 300
_FAILED: Final = frozenset({"error", "interrupted"})
FACETS: Final = ("operation", "outcome", "task_name", "system", "error_code")
"""Fields by which the history counts and filters."""


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """Whether one run can be recovered, and to what point."""

    task_title: str
    """The name of the task; without a task, the program."""
    task_name: str | None
    task_id: str | None
    system: str | None
    last_good: OperationRow | None
    """The newest save that succeeded, and whose checkpoint was neither deleted nor damaged since."""
    last_attempt: OperationRow
    """The newest save, whatever its outcome."""
    consecutive_failures: int
    """Saves since the last good one."""
    running: OperationRow | None
    """The task or operation that is running."""
    interval_seconds: float | None
    """Median time between two good saves."""
    at_risk_seconds: float | None
    """Work that would be lost now: time since the last good save. None if nothing is running."""
    progress: Progress | None
    """How far the run has come, if it declares its number of steps."""


class FailedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """A failed operation and what to do about it."""

    operation: OperationRow
    impact: str
    advice: str


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The first page."""

    tasks: tuple[TaskState, ...]
    failures: tuple[FailedOperation, ...]
    running: tuple[OperationRow, ...]
    totals: StoreTotals
    considered: int
    """Number of operations that were read."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """A page of operations, newest first, and how often each value of a facet occurs among those that were read."""

    operations: tuple[OperationRow, ...]
    facets: dict[str, dict[str, int]]
    considered: int


class SizedSave(msgspec.Struct, frozen=True, kw_only=True):
    """A save with the sizes of its largest keys."""

    operation: OperationRow
    serialized_bytes: int | None
    keys: dict[str, int]


class CheckpointPage(msgspec.Struct, frozen=True, kw_only=True):
    """One operation with everything that is known, and the saves of the same run, oldest first."""

    operation: ObservedOperation
    advice: str
    history: tuple[SizedSave, ...]


class LibraryHealth(msgspec.Struct, frozen=True, kw_only=True):
    """A library, and how many operations of it were recorded."""

    name: str
    title: str
    is_default: bool
    """Whether it is observed unless the program asks for something else."""
    operations: int


class Libraries(msgspec.Struct, frozen=True, kw_only=True):
    """What is observed, and which programs recorded nothing."""

    libraries: tuple[LibraryHealth, ...]
    unobserved: tuple[UnobservedProgram, ...]


def overview(traces: Traces) -> Overview:
    """Return which runs can be recovered, what failed last, and what is running."""
    running = traces.running()
    operations = list(itertools.islice(_operations(traces), NEWEST))
    by_run: dict[str | None, list[ObservedOperation]] = {}
    for operation in operations:
        if not operation.is_running:
            by_run.setdefault(_run(operation), []).append(operation)
    runs = itertools.chain.from_iterable(map(_split_by_task, by_run.values()))
    states = (_task_state(run, running) for run in runs if any(each.name == "save" for each in run))
    return Overview(
        tasks=tuple(state for state in states if state is not None),
        failures=tuple(map(_failure, itertools.islice((each for each in operations if each.outcome in _FAILED), _MAX_FAILURES))),
        running=tuple(map(row_of, running)),
        totals=traces.totals(),
        considered=len(operations),
    )


def history(traces: Traces, matching: OperationFilter, text: str, limit: int) -> History:
    """Return operations that match the filter and contain the text in an id, a name or their error."""
    needle = text.casefold()
    rows = [row for row in map(row_of, itertools.islice(_operations(traces, matching), NEWEST)) if not needle or _contains(row, needle)]
    facets = {facet: dict(Counter(_facet(row, facet) for row in rows).most_common(50)) for facet in FACETS}
    for counts in facets.values():
        counts.pop("", None)
    return History(operations=tuple(rows[: min(limit, MAX_ROWS)]), facets=facets, considered=len(rows))


def checkpoint(traces: Traces, trace_id: str, span_id: str) -> CheckpointPage:
    """Return one operation and the saves of its run. Raise TraceNotFoundError."""
    trace = traces.trace(trace_id)
    operation = next((each for each in trace.operations if each.span_id == span_id), None)
    if operation is None:
        raise TraceNotFoundError(f"trace {trace_id} has no operation {span_id}; it may still be running in a process that is not delivered")
    same_run = OperationFilter(
        operation="save",
        task_id=operation.task_id,
        task_name=operation.task_name,
        service=None if operation.task_id or operation.task_name else operation.service,
        system=operation.system,
    )
    saves = [each for each in itertools.islice(traces.operations(same_run, phases=False), _MAX_HISTORY) if each.outcome == "ok"]
    if operation.name == "save" and operation.outcome == "ok" and all(each.span_id != span_id for each in saves):
        saves.append(operation)  # older than the others
    return CheckpointPage(operation=operation, advice=_advice(operation), history=tuple(map(_sized, reversed(saves))))


def library_health(traces: Traces) -> Libraries:
    """Return the table of libraries with the number of operations of each among the newest ones."""
    counts = Counter(operation.system for operation in itertools.islice(_operations(traces), NEWEST))
    rows = [
        LibraryHealth(name=name, title=library.title, is_default=library.default, operations=counts[libraries.system_of(name)])
        for name, library in libraries.LIBRARIES.items()
    ]
    return Libraries(libraries=tuple(rows), unobserved=tuple(traces.unobserved_programs()))


def _operations(traces: Traces, matching: OperationFilter = OperationFilter()) -> Iterable[ObservedOperation]:  # noqa: B008 - immutable
    return (operation for operation in traces.operations(matching, phases=False) if operation.kind == "operation")


def _run(operation: ObservedOperation) -> str | None:
    """Return what identifies a run: the id of the task, or without one its name, or without a task the program."""
    return operation.task_id or operation.task_name or operation.service


def _split_by_task(run: list[ObservedOperation]) -> list[list[ObservedOperation]]:
    """Return the runs of different tasks with the same id, such as `1`. An operation of a child process that has no name counts for all."""
    task_names = dict.fromkeys(operation.task_name for operation in run if operation.task_name is not None)
    return [[operation for operation in run if operation.task_name in (name, None)] for name in task_names or (None,)]


def _task_state(run: list[ObservedOperation], running: list[ObservedOperation]) -> TaskState | None:
    """Return the state of a run from its operations, newest first. None if all its checkpoints were deleted at once, so that it is over."""
    saves, lost = [operation for operation in run if operation.name == "save"], LostCheckpoints(run)
    newest = saves[0]
    if lost.run_is_deleted_after(newest):
        return None
    named = next((save for save in saves if save.task_name is not None), newest)  # a child process may not know the name
    good = [save for save in saves if save.outcome == "ok"]
    last_good = next((save for save in good if not lost.contains(save)), None)
    same_run = (operation for operation in running if _run(operation) == _run(newest))
    active = next((each for each in same_run if each.task_name == named.task_name or None in (each.task_name, named.task_name)), None)
    ends = [save.end_unix_nano or 0 for save in reversed(good)]
    intervals = [(after - before) / 1e9 for before, after in itertools.pairwise(ends)]
    at_risk = (time.time_ns() - (last_good.end_unix_nano or 0)) / 1e9 if active is not None and last_good is not None else None
    return TaskState(
        task_title=named.task_title,
        task_name=named.task_name,
        task_id=newest.task_id,
        system=newest.system,
        last_good=row_of(last_good) if last_good else None,
        last_attempt=row_of(newest),
        consecutive_failures=next((index for index, save in enumerate(saves) if save.outcome == "ok"), len(saves)),
        running=row_of(active) if active else None,
        interval_seconds=statistics.median(intervals) if intervals else None,
        at_risk_seconds=at_risk,
        progress=measure_progress([step for save in good if (step := SavedStep.of(save))]),
    )


def _failure(operation: ObservedOperation) -> FailedOperation:
    impact = str(operation.attributes.get(names.ERROR_IMPACT, ""))
    return FailedOperation(operation=row_of(operation), impact=impact, advice=_advice(operation))


def _advice(operation: ObservedOperation) -> str:
    return ADVICE.get(str(operation.attributes.get(names.ERROR_CODE)), "")


def _sized(operation: ObservedOperation) -> SizedSave:
    attributes = operation.attributes
    pairs = zip(_items(attributes.get(names.KEY_NAMES)), _items(attributes.get(names.KEY_SIZES)), strict=False)
    keys = {str(name): size for name, size in pairs if isinstance(size, int)}
    serialized = attributes.get(names.SIZE_SERIALIZED)
    return SizedSave(operation=row_of(operation), serialized_bytes=serialized if isinstance(serialized, int) else None, keys=keys)


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _facet(row: OperationRow, facet: str) -> str:
    return str((row.name if facet == "operation" else getattr(row, facet)) or "")


def _contains(row: OperationRow, needle: str) -> bool:
    texts = (row.trace_id, row.span_id, row.checkpoint_id, row.task_id, row.task_title, row.error, row.error_code)
    return any(needle in text.casefold() for text in texts if text)
