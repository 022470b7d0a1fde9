"""`ckpt-observe stats`: shows sizes, growth, largest keys and forecast of a store; without a store, times and sizes of operations."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from argparse import Namespace, _SubParsersAction
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ckpt_observe import readers
from ckpt_observe.cli.argument_types import positive_count
from ckpt_observe.cli.checkpoint_source import STORE_HELP, open_checkpointer
from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import ERROR, NOT_FOUND, OK, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.output import Column, drop_empty_columns, print_error, print_left_out, print_table
from ckpt_observe.cli.trace_arguments import add_state_directory, print_omission, read_settings, recorded_traces
from ckpt_observe.core import Checkpointer, Query
from ckpt_observe.query import OperationStatistics
from ckpt_observe.readers.reading import path_of_url
from ckpt_observe.support.formatting import format_duration, format_ratio, format_size, printable
from ckpt_observe.tuning.growth import TaskGrowth, measure_tasks, seconds_until_full


class LargestKey(msgspec.Struct, frozen=True):
    """A key or channel, over all checkpoints."""

    name: str
    size: int


class StoreStatistics(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="store"):
    """A whole store or database."""

    location: str
    tasks: int
    checkpoints: int | None
    stored_size: int
    keys: tuple[LargestKey, ...]
    """Largest first."""
    repeated_size: int | None
    """Bytes of values that the checkpoint before already contains unchanged."""
    prunable_size: int | None
    """Bytes that would be free if only the newest checkpoint of each task was left."""
    free_size: int | None = None
    """Free bytes on its disk, if it is on a local one."""
    seconds_until_full: float | None = None
    """When the disk is full if nothing is removed, at the present rate and growth."""


class RecordedOperations(msgspec.Struct, frozen=True, tag_field="type", tag="operations"):
    """Operations of one kind, of one task and library, from the traces."""

    statistics: OperationStatistics


JSON: Final = {"stats": TaskGrowth | StoreStatistics | RecordedOperations}
_TASK_COLUMNS: Final = (
    Column("TASK"),
    Column("CHECKPOINTS", align_right=True),
    Column("STORED", format_size, align_right=True),
    Column("LAST", lambda size: "" if size is None else format_size(size), align_right=True),
    Column("RATIO", lambda ratio: "" if ratio is None else format_ratio(ratio), align_right=True),
    Column("EVERY", lambda seconds: "" if seconds is None else format_duration(seconds), align_right=True),
    Column("GROWTH", lambda size: _signed_size(size) if size else "", align_right=True),
    Column("PER DAY", lambda size: "" if size is None else format_size(round(size)), align_right=True),
    Column("LARGEST KEY"),
)
OPERATION_COLUMNS: Final = (  # they fit 80 columns without a folded word; `--json` has more percentiles
    Column("TASK"),
    Column("OPERATION", whole=True),
    Column("OK", align_right=True),
    Column("FAILED", align_right=True, style=lambda count: "red" if count else ""),
    *(
        Column(name, lambda seconds: "" if seconds is None else format_duration(seconds), align_right=True)
        for name in ("P50", "P99", "MAX")
    ),
    Column("STORED P50", lambda size: "" if size is None else format_size(round(size)), align_right=True),
    Column("LONGEST PHASE"),
)


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "stats",
        run,
        description=command_description(__doc__),
        codes=(OK, ERROR, USAGE, NOT_FOUND),
        json="task, store or kind of operation",
    )
    parser.add_argument("store", nargs="?", metavar="STORE", help=STORE_HELP)
    parser.add_argument("--limit", type=positive_count, default=20, metavar="N", help="rows of the table (default 20)")
    add_state_directory(parser)


def run(args: Namespace) -> int:
    """Print the statistics."""
    if args.store is None:
        return _show_recorded(args)
    checkpointer = open_checkpointer(args.store)
    if checkpointer is None:
        tasks, store = _measure_foreign(args.store)
    else:
        with checkpointer:
            tasks, store = _measure(checkpointer, args.store)
    if args.json:
        print_structs([*tasks, store])
        return OK
    if tasks:
        print_table(*drop_empty_columns(_TASK_COLUMNS, [_task_row(task) for task in tasks[: args.limit]]))
        print_left_out(len(tasks), args.limit)
        print()
    for line in _summary(store):
        print(printable(line))
    return OK


def _measure(checkpointer: Checkpointer, location: str) -> tuple[list[TaskGrowth], StoreStatistics]:
    tasks = measure_tasks(checkpointer.find(Query()))
    contents = readers.read(location)
    free = _free_size(location)
    store = StoreStatistics(
        location=contents.location,
        tasks=len(tasks),
        checkpoints=sum(task.checkpoints for task in tasks),
        stored_size=sum(task.stored_size for task in tasks),
        keys=tuple(LargestKey(entry.name, entry.size) for entry in contents.entries),
        repeated_size=contents.repeated_size,
        prunable_size=contents.prunable_size,
        free_size=free,
        seconds_until_full=None if free is None else seconds_until_full(free, tasks),
    )
    return tasks, store


def _measure_foreign(location: str) -> tuple[list[TaskGrowth], StoreStatistics]:
    contents = readers.read(location)
    groups = contents.breakdown("thread") or contents.breakdown("task")
    tasks = (
        [TaskGrowth(task=entry.name, checkpoints=entry.items or 0, stored_size=entry.size) for entry in groups.entries] if groups else []
    )
    store = StoreStatistics(
        location=contents.location,
        tasks=len(tasks),
        checkpoints=sum(task.checkpoints for task in tasks) if groups else None,
        stored_size=contents.size if contents.stored_size is None else contents.stored_size,
        keys=tuple(LargestKey(entry.name, entry.size) for entry in contents.entries),
        repeated_size=contents.repeated_size,
        prunable_size=contents.prunable_size,
        free_size=_free_size(location),
    )
    return tasks, store


def _free_size(location: str) -> int | None:
    scheme, separator, _ = location.partition("://")
    if separator and scheme.lower() not in ("file", "jsonl", "sqlite", "git"):
        return None
    path = path_of_url(location) if separator else os.path.expanduser(location)
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _task_row(task: TaskGrowth) -> Sequence[object]:
    key = task.keys[0] if task.keys else None
    largest = "" if key is None else f"{key.name} ({format_size(key.last_bytes)})"
    sizes = (task.stored_size, task.last_size, task.compression_ratio, task.seconds_between, task.bytes_per_checkpoint, task.bytes_per_day)
    return (task.task, task.checkpoints, *sizes, largest)


def _signed_size(size: float) -> str:
    return ("-" if size < 0 else "+") + format_size(abs(round(size)))


def _summary(store: StoreStatistics) -> list[str]:
    count = "" if store.checkpoints is None else f"; checkpoints: {store.checkpoints}, tasks: {store.tasks}"
    lines = [f"{format_size(store.stored_size)} stored{count}"]
    if store.keys:
        lines.append("largest keys: " + ", ".join(f"{key.name} {format_size(key.size)}" for key in store.keys[:5]))
    if store.repeated_size:
        lines.append(f"{format_size(store.repeated_size)} stored again unchanged")
    if store.prunable_size:
        lines.append(f"{format_size(store.prunable_size)} free if only the newest checkpoint of each task was left")
    if store.free_size is not None:
        lines.append(f"{format_size(store.free_size)} free on its disk{_describe_forecast(store.seconds_until_full)}")
    return lines


def _describe_forecast(seconds: float | None) -> str:
    if seconds is None:
        return ""
    days = seconds / 86400
    if days > 3650:
        return ": enough for more than ten years at the present rate and growth"
    date = dt.datetime.now().astimezone() + dt.timedelta(seconds=seconds)
    when = format_duration(seconds) if days < 2 else f"{days:.0f} days"
    return f": full in {when} ({date:%Y-%m-%d}) at the present rate and growth, if nothing is removed"


def _show_recorded(args: Namespace) -> int:
    with recorded_traces(args) as traces:
        operations = traces.statistics().operations
    print_omission(read_settings(args))
    if args.json:
        print_structs(map(RecordedOperations, operations))
    elif operations:
        print_table(OPERATION_COLUMNS, map(_operation_row, operations[: args.limit]))
        print_left_out(len(operations), args.limit)
    else:
        print_error("no operation was recorded yet; `ckpt-observe stats STORE` looks into a store")
        return NOT_FOUND
    return OK


def _operation_row(row: OperationStatistics) -> Sequence[object]:
    seconds = (None,) * 3 if row.seconds is None else (row.seconds.p50, row.seconds.p99, row.seconds.max)
    longest = max(row.phase_seconds.items(), key=lambda item: item[1].mean, default=None)
    phase = "" if longest is None else f"{longest[0]} ({format_duration(longest[1].mean)})"
    successes = row.outcomes.get("ok", 0)
    stored = None if row.stored_bytes is None else row.stored_bytes.p50
    return (row.task_name or "", row.operation, successes, sum(row.outcomes.values()) - successes, *seconds, stored, phase)
