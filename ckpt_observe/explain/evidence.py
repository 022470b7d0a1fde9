"""Collects what the explanation of an operation needs, with a few queries, and chooses the operations of a trace that need one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from msgspec.structs import replace

from ckpt_observe.explain.comparison import is_slow, usual_values
from ckpt_observe.explain.explanation import FAILURES, NEARBY_SECONDS, Evidence, OperationExplanation, ProgramFailure, explain
from ckpt_observe.query import ALL, RUNNING, ObservedOperation, OperationFilter, Trace, Traces
from ckpt_observe.query.lost_checkpoints import LostCheckpoints
from ckpt_observe.semconv import attributes as names

_COMPARED: Final = 200
"""Operations that one is compared with, the newest ones."""
_SEARCHED: Final = 2000
"""Operations of a run that are searched for what happened later."""
_MAX_NEARBY: Final = 1000


class Explainer:
    """Explains operations of one state directory, as of one moment."""

    def __init__(self, traces: Traces, now_unix_nano: int) -> None:
        self._traces, self._now = traces, now_unix_nano
        self._compared: dict[OperationFilter, list[ObservedOperation]] = {}

    def explain(self, operation: ObservedOperation) -> OperationExplanation:
        """Return the explanation of an operation or task."""
        return explain(operation, self._evidence(operation))

    def select(self, trace: Trace) -> list[ObservedOperation]:
        """Return what needs an explanation in a trace.

        What failed, or the task that failed without a failed operation; else what is running; else what was stopped; else what was slow;
        else what waited for a slow rank; else what took longest.
        """
        operations = [operation for operation in trace.operations if operation.kind == "operation"]
        for outcomes in (("error", "interrupted"), (RUNNING,), ("cancelled",)):
            if selected := [operation for operation in operations if operation.outcome in outcomes]:
                return selected
            if RUNNING not in outcomes and (tasks := _innermost_tasks(trace, outcomes)):
                return tasks
        if slow := [operation for operation in operations if self._is_slow(operation)]:
            return slow
        if waited := [operation for operation in operations if names.STRAGGLER_RANK in operation.attributes]:
            return waited
        return sorted(operations or trace.operations, key=lambda operation: operation.seconds(self._now))[-1:]

    def newest_failure(self, matching: OperationFilter = ALL) -> ObservedOperation | None:
        """Return the matching operation that failed last, or whose process died last. A task that failed only with it explains less."""
        failures = [next(self._operations(replace(matching, outcome=outcome)), None) for outcome in FAILURES]
        newest = max(filter(None, failures), key=lambda operation: operation.end_unix_nano or 0, default=None)
        if newest is None or newest.kind == "operation":
            return newest
        inside = [each for each in self._traces.trace(newest.trace_id).operations if each.kind == "operation" and each.outcome in FAILURES]
        return max(inside, key=lambda operation: operation.end_unix_nano or 0, default=newest)

    def _is_slow(self, operation: ObservedOperation) -> bool:
        return is_slow(operation.seconds(self._now), usual_values(self._comparable(operation), self._now))

    def _evidence(self, operation: ObservedOperation) -> Evidence:
        next_success, failures_since = self._later(operation)
        return Evidence(
            now_unix_nano=self._now,
            comparable=self._comparable(operation),
            last_good_save=self._last_good_save(operation),
            next_success=next_success,
            failures_since=failures_since,
            nearby_failures=list(islice(self._nearby(operation), _MAX_NEARBY)),
            program_failure=self._program_failure(operation),
        )

    def _program_failure(self, operation: ObservedOperation) -> ProgramFailure | None:
        """Return what is known about the failure of a task in which no operation failed."""
        if operation.kind != "task" or operation.outcome != "error":
            return None
        inside = [each for each in self._traces.trace(operation.trace_id).operations if each.kind == "operation"]
        if any(each.outcome in FAILURES for each in inside):
            return None
        failed_nodes = (each.attributes.get(names.NODE) for each in inside if each.attributes.get(names.REASON) == "error")
        return ProgramFailure(node=next((str(node) for node in failed_nodes if node), None))

    def _comparable(self, operation: ObservedOperation) -> list[ObservedOperation]:
        """Return successful operations of the same kind and task; without a task, of the same library and program."""
        if operation.kind == "span":
            return []
        matching = OperationFilter(
            operation=operation.name if operation.kind == "operation" else None,
            outcome="ok",
            task_name=operation.task_name,
            system=operation.system,
            service=None if operation.task_name else operation.service,
        )
        if matching not in self._compared:
            same_kind = (other for other in self._traces.operations(matching) if other.kind == operation.kind)
            self._compared[matching] = list(islice(same_kind, _COMPARED + 1))
        return [other for other in self._compared[matching] if other.span_id != operation.span_id][:_COMPARED]

    def _last_good_save(self, operation: ObservedOperation) -> ObservedOperation | None:
        """Return the newest save of the run that succeeded, and whose checkpoint was neither deleted nor damaged since."""
        if operation.task_id is None:
            return None
        run = OperationFilter(task_id=operation.task_id, system=operation.system)
        deletes = [each for name in ("delete", "prune") for each in self._operations(replace(run, operation=name, outcome="ok"))]
        damaged = self._operations(replace(run, error_class="integrity"))
        lost = LostCheckpoints(other for other in (*deletes, *damaged) if _is_of_same_task(other, operation))
        saves = self._operations(replace(run, operation="save", outcome="ok"))
        good = (save for save in saves if names.NAMESPACE not in save.attributes and not lost.contains(save))
        return next((save for save in good if _is_of_same_task(save, operation)), None)

    def _later(self, operation: ObservedOperation) -> tuple[ObservedOperation | None, int]:
        """Return the next success of the same kind and run, and how many of them failed before that."""
        end = operation.end_unix_nano
        if operation.kind != "operation" or operation.task_id is None or end is None or operation.outcome not in FAILURES:
            return None, 0
        matching = OperationFilter(task_id=operation.task_id, system=operation.system, operation=operation.name, since_unix_nano=end)
        same_task = (other for other in self._operations(matching) if _is_of_same_task(other, operation))
        later = [other for other in same_task if other.start_unix_nano > operation.start_unix_nano]
        failures = 0
        for other in sorted(later, key=lambda each: each.end_unix_nano or 0):
            if other.outcome == "ok":
                return other, failures
            failures += other.outcome in FAILURES
        return None, failures

    def _nearby(self, operation: ObservedOperation) -> Iterator[ObservedOperation]:
        end = operation.end_unix_nano or self._now
        distance = NEARBY_SECONDS * 1_000_000_000
        for outcome in ("error", "interrupted"):
            matching = OperationFilter(since_unix_nano=end - distance, until_unix_nano=end + distance, outcome=outcome)
            for other in self._operations(matching):
                if other.kind == "operation" and other.span_id != operation.span_id:
                    yield other

    def _operations(self, matching: OperationFilter) -> Iterator[ObservedOperation]:
        finished = (operation for operation in self._traces.operations(matching) if not operation.is_running)
        return islice(finished, _SEARCHED)


def _innermost_tasks(trace: Trace, outcomes: tuple[str, ...]) -> list[ObservedOperation]:
    """Return the tasks with these outcomes, without those that only contain another one of them."""
    tasks = [operation for operation in trace.operations if operation.kind == "task" and operation.outcome in outcomes]
    outer = {task.parent_span_id for task in tasks}
    return [task for task in tasks if task.span_id not in outer]


def _is_of_same_task(other: ObservedOperation, operation: ObservedOperation) -> bool:
    """Return whether an operation with the same run id may be of the same run: run ids such as `1` are those of many tasks."""
    return other.task_name == operation.task_name or None in (other.task_name, operation.task_name)
