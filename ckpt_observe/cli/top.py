"""`ckpt-observe top`: shows for each task what is running, how often it saves, its last success and its failures, until Ctrl-C."""

from __future__ import annotations

import time
from argparse import Namespace, _SubParsersAction
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from ckpt_observe import query, wiring
from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import ERROR, INTERRUPTED, OK, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.output import Column, is_pipe_closed, live_table, print_error, print_table
from ckpt_observe.cli.tail import describe_failure
from ckpt_observe.cli.trace_arguments import add_state_directory, print_omission, read_settings
from ckpt_observe.journal.locations import private_directory
from ckpt_observe.query import Changes, ObservedOperation, OperationFilter, Progress, SavedStep, Traces, measure_progress
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.formatting import format_duration

WINDOW: Final = 3600
"""Seconds for which finished operations count."""
MAX_OPERATIONS: Final = 20_000
"""Finished operations that are kept, the newest ones. At a high rate they are those of less than an hour."""
REFRESH: Final = 1.0
_MINUTE: Final = 60.0
_WRITES: Final = ("save", "append")
_FAILURES: Final = ("error", "interrupted")


class RunningNow(msgspec.Struct, frozen=True):
    """An operation that is running."""

    operation: str
    seconds: float
    phase: str | None


class TaskActivity(msgspec.Struct, frozen=True, kw_only=True):
    """One task at one moment. What finished counts for an hour."""

    task: str
    """Its name; of operations without a task, the program."""
    running: list[RunningNow]
    """The longest first."""
    operations: int
    operations_per_minute: float
    """Over the last hour, or since the first of them."""
    last_success_age: float | None
    """Seconds since the newest successful save or append, however old; after a drill, also of its checkpoint. None if unknown."""
    failures: int
    """Operations that failed or were interrupted, and runs that ended so between two operations."""
    last_failure: str | None
    """Error code and phase of the newest of them."""
    progress: Progress | None
    """Of the run that saved last, if it declares its number of steps."""


JSON: Final = {"top": TaskActivity}
_Show: TypeAlias = Callable[[list[TaskActivity]], None]


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "top",
        run,
        description=command_description(__doc__),
        notes=f"Rate and failures are those of the last hour, and of at most {MAX_OPERATIONS} operations.",
        codes=(OK, ERROR, USAGE, INTERRUPTED),
        json="task",
    )
    parser.add_argument("--once", action="store_true", help="print one table and exit")
    add_state_directory(parser)


def run(args: Namespace) -> int:
    """Show the table until somebody stops it, and return the exit code."""
    settings = read_settings(args)
    private_directory(settings.dir)
    with query.open_traces(settings.dir) as traces, wiring.delivering_dead(settings, timeout=1.0) as delivery:
        delivery.flush()  # what dead processes left belongs to the first table
        table = TaskTable(traces)
        cursor = table.load(time.time_ns())
        if not table.tasks(time.time_ns()):
            print_error(f"nothing was recorded in {settings.dir} in the last hour; `ckpt-observe traces` lists what is older")
        print_omission(settings)
        with _view(args) as show:
            show(table.tasks(time.time_ns()))
            for changes in traces.follow(cursor, interval=REFRESH) if not args.once else ():
                table.add(changes)
                show(table.tasks(time.time_ns()))
                if is_pipe_closed():
                    break
    return OK


@contextmanager
def _view(args: Namespace) -> Iterator[_Show]:
    """Yield the function that shows the tasks at one moment."""
    if args.json:
        yield print_structs
    elif args.once:
        yield lambda tasks: print_table(_COLUMNS, map(_row, tasks))
    else:
        with live_table(_COLUMNS) as show:
            yield lambda tasks: show(map(_row, tasks))


class FinishedOperation(NamedTuple):
    """What the table needs of an operation that has ended."""

    task: str
    name: str
    outcome: str
    start_unix_nano: int
    end_unix_nano: int
    failure: str
    saved_step: SavedStep | None
    saved_unix_nano: int | None
    """When the checkpoint was saved that it wrote, or that a drill loaded. None if it failed, or did neither."""


class TaskTable:
    """What the tasks of a state directory did in the last hour, and are doing now."""

    def __init__(self, traces: Traces) -> None:
        self._traces = traces
        self._finished: dict[tuple[str, str], FinishedOperation] = {}
        self._failed_runs: dict[tuple[str, str], FinishedOperation] = {}
        """Tasks that failed or were interrupted."""
        self._running: tuple[ObservedOperation, ...] = ()
        self._last_success: dict[str, int | None] = {}

    def load(self, now_unix_nano: int) -> str:
        """Read what was recorded before, and return the cursor from which to follow."""
        changes = self._traces.changes()  # first: what finishes meanwhile is then read twice, and not missed
        newest_first = self._traces.operations(OperationFilter(since_unix_nano=now_unix_nano - WINDOW * 1_000_000_000))
        self._add_finished(reversed(list(islice(newest_first, MAX_OPERATIONS))))
        self._running = changes.running
        return changes.cursor

    def add(self, changes: Changes) -> None:
        """Add what happened since."""
        self._add_finished(changes.finished)
        self._running = changes.running

    def tasks(self, now_unix_nano: int) -> list[TaskActivity]:
        """Return the tasks that run, or that finished an operation in the last hour: those with running operations first, then by name."""
        start = now_unix_nano - WINDOW * 1_000_000_000
        self._finished, self._failed_runs = (
            {key: operation for key, operation in each.items() if operation.end_unix_nano >= start}
            for each in (self._finished, self._failed_runs)
        )
        finished: dict[str, list[FinishedOperation]] = {}
        for operation in self._finished.values():
            finished.setdefault(operation.task, []).append(operation)
        failed_runs: dict[str, list[FinishedOperation]] = {}
        counted = {(trace_id, operation.outcome) for (trace_id, _), operation in self._finished.items()}
        for (trace_id, _), run in self._failed_runs.items():
            if (trace_id, run.outcome) not in counted:  # a run that failed with an operation is one failure
                failed_runs.setdefault(run.task, []).append(run)
        running: dict[str, list[ObservedOperation]] = {}
        for each in self._running:
            of_task = running.setdefault(each.task_title, [])  # also of a task whose last save is older than the window: it may be late
            if each.kind == "operation":
                of_task.append(each)
        activities = [
            self._activity(task, finished.get(task, []), failed_runs.get(task, []), running.get(task, []), now_unix_nano)
            for task in {**finished, **failed_runs, **running}
        ]
        return sorted(activities, key=lambda activity: (not activity.running, activity.task))

    def _activity(
        self, task: str, finished: list[FinishedOperation], failed_runs: list[FinishedOperation], running: list[ObservedOperation], now: int
    ) -> TaskActivity:
        failed = failed_runs + [operation for operation in finished if operation.outcome in _FAILURES]
        newest_failure = max(failed, key=lambda operation: operation.end_unix_nano, default=None)
        first = min((operation.start_unix_nano for operation in finished), default=now)
        last_success = self._find_last_success(task, finished)
        return TaskActivity(
            task=task,
            running=[
                RunningNow(operation.name, operation.seconds(now), operation.phase)
                for operation in sorted(running, key=lambda operation: operation.start_unix_nano)
            ],
            operations=len(finished),
            operations_per_minute=len(finished) / max((now - first) / 1e9, _MINUTE) * _MINUTE,
            last_success_age=None if last_success is None else max(now - last_success, 0) / 1e9,
            failures=len(failed),
            last_failure=newest_failure.failure if newest_failure else None,
            progress=measure_progress([operation.saved_step for operation in finished if operation.saved_step]),
        )

    def _find_last_success(self, task: str, finished: list[FinishedOperation]) -> int | None:
        """Return the end of the newest successful save. One that is older than what is kept is looked up once."""
        saves = [operation.saved_unix_nano for operation in finished if operation.saved_unix_nano is not None]
        if task not in self._last_success:
            self._last_success[task] = None if saves else self._look_up(task)
        self._last_success[task] = max(saves, default=self._last_success[task])
        return self._last_success[task]

    def _look_up(self, task: str) -> int | None:
        for matching in (OperationFilter(outcome="ok", task_name=task), OperationFilter(outcome="ok", service=task)):
            for operation in self._traces.operations(matching):
                if operation.name in _WRITES and operation.task_title == task and operation.end_unix_nano is not None:
                    return operation.end_unix_nano
        return None

    def _add_finished(self, operations: Iterable[ObservedOperation]) -> None:
        for operation in operations:
            end = operation.end_unix_nano
            is_failed_run = operation.kind == "task" and operation.outcome in _FAILURES
            if (operation.kind == "operation" or is_failed_run) and end is not None:
                rows = self._failed_runs if is_failed_run else self._finished
                rows[operation.trace_id, operation.span_id] = FinishedOperation(
                    operation.task_title,
                    operation.name,
                    operation.outcome,
                    operation.start_unix_nano,
                    end,
                    describe_failure(operation),
                    SavedStep.of(operation),
                    _saved_unix_nano(operation, end),
                )
        for rows in (self._finished, self._failed_runs):
            for key in list(islice(rows, max(len(rows) - MAX_OPERATIONS, 0))):
                del rows[key]


def _saved_unix_nano(operation: ObservedOperation, end_unix_nano: int) -> int | None:
    if operation.outcome != "ok":
        return None
    if operation.name in _WRITES:
        return end_unix_nano
    age = operation.attributes.get(names.SOURCE_AGE) if operation.name == "drill" else None
    if isinstance(age, (int, float)) and 0 <= age <= end_unix_nano / 1e9:  # own code may record any number
        return end_unix_nano - int(age * 1e9)
    return None


def _format_running(running: list[RunningNow]) -> str:
    if not running:
        return "-"
    longest = running[0]
    phase = f", in {longest.phase}" if longest.phase else ""
    more = f" (+{len(running) - 1})" if len(running) > 1 else ""
    return f"{longest.operation} {format_duration(longest.seconds)}{phase}{more}"


def _format_age(seconds: float | None) -> str:
    return "none recorded" if seconds is None else f"{format_duration(seconds)} ago"


def _format_progress(progress: Progress | None) -> str:
    if progress is None:
        return "-"
    time_left = f", {format_duration(progress.remaining_seconds)} left" if progress.remaining_seconds else ""
    return f"{progress.step} of {progress.total_steps}{time_left}"


_COLUMNS: Final = (
    Column("TASK"),
    Column("RUNNING", _format_running),
    Column("LAST GOOD SAVE", _format_age, align_right=True),
    Column("PROGRESS", _format_progress),
    Column("PER MINUTE", "{:.1f}".format, align_right=True),
    Column("FAILURES", align_right=True, style=lambda count: "red" if count else ""),
    Column("LAST FAILURE", lambda failure: failure or "-"),
)


def _row(task: TaskActivity) -> tuple[object, ...]:
    return (task.task, task.running, task.last_success_age, task.progress, task.operations_per_minute, task.failures, task.last_failure)
