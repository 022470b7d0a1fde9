"""`ckpt-observe list`: lists the checkpoints of a store or database, the newest first, with filters."""

from __future__ import annotations

import datetime as dt
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from ckpt_observe import readers
from ckpt_observe.cli.argument_types import byte_count, moment, parameter, positive_count
from ckpt_observe.cli.checkpoint_source import add_store, check_task, open_checkpointer
from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import ERROR, NOT_FOUND, OK, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.output import Column, drop_empty_columns, print_error, print_left_out, print_table
from ckpt_observe.core import Checkpointer, CheckpointInfo, Query
from ckpt_observe.errors import ConfigError
from ckpt_observe.readers import Contents, Entry
from ckpt_observe.support.formatting import format_size, format_time

_FILTERS: Final = (
    "since",
    "until",
    "min_step",
    "max_step",
    "status",
    "error_class",
    "error_type",
    "tag",
    "min_size",
    "max_size",
    "parameters",
)


class ListedCheckpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="checkpoint"):
    """A checkpoint, as its header describes it. Fields that the format does not have are missing."""

    task: str
    """Task of the core, or thread of LangGraph."""
    id: str
    namespace: str = ""
    """Namespace of a subgraph of LangGraph; missing for the outermost graph."""
    created: dt.datetime | None = None
    step: int | None = None
    node: str = ""
    """Node of a graph after which it was saved."""
    status: str = ""
    size: int
    """Bytes of the serialized state."""
    stored_size: int | None = None
    """Bytes in the store, after compression and with the header."""
    keys: int | None = None
    """Number of top-level keys or channels."""
    format: str = ""
    codec: str = ""
    tags: tuple[str, ...] = ()
    error_class: str = ""
    error_type: str = ""
    metadata: dict[str, Any] = {}


class ListedTask(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="task"):
    """A task (thread) of a database whose checkpoints are read only for one task at a time, because that reads their values."""

    task: str
    checkpoints: int | None
    size: int


JSON: Final = {"list": ListedCheckpoint | ListedTask}


def format_moment(time: dt.datetime | None) -> str:
    """Return the local time; an empty string if it is unknown. A header may have one that has no local time, such as the year 1."""
    if time is None:
        return ""
    try:
        return format_time(int(time.timestamp() * 1e9))
    except (ValueError, OverflowError):
        return time.isoformat()


def read_moment(text: object) -> dt.datetime | None:
    """Parse the time in a header. Return None if the text is not a time."""
    try:
        time = dt.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=dt.UTC)


_NO_TIME: Final = dt.datetime.min.replace(tzinfo=dt.UTC)


def format_optional(value: object) -> str:
    """Return a value as text, and None as an empty string."""
    return "" if value is None else str(value)


_COLUMNS: Final = (
    Column("TASK"),
    Column("ID", whole=True),
    Column("NAMESPACE"),
    Column("CREATED", format_moment, whole=True),
    Column("STEP", format_optional, align_right=True),
    Column("STATUS", style=lambda status: "red" if status == "failed" else ""),
    Column("KEYS", format_optional, align_right=True),
    Column("SIZE", format_size, align_right=True),
    Column("STORED", lambda size: "" if size is None else format_size(size), align_right=True),
    Column("NOTES"),
)


_TASK_COLUMNS: Final = (
    Column("TASK"),
    Column("CHECKPOINTS", format_optional, align_right=True),
    Column("SIZE", format_size, align_right=True),
)


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "list",
        run,
        description=command_description(__doc__),
        notes="A checkpoint must match all filters.",
        codes=(OK, ERROR, USAGE, NOT_FOUND),
        json="checkpoint or task",
    )
    add_store(parser)
    parser.add_argument("task", nargs="?", metavar="TASK", help="only this task (LangGraph: thread)")
    parser.add_argument("--limit", type=positive_count, default=20, metavar="N", help="list at most N checkpoints (default 20)")
    _add_filters(parser)


def _add_filters(parser: ArgumentParser) -> None:
    filters = parser.add_argument_group("filters, for stores of ckpt_observe.core")
    time_help = "an age such as 90s, 15m, 1h or 7d, or a time such as 2026-01-31T12:00Z"
    filters.add_argument("--since", type=moment, metavar="TIME", help=f"only those saved at or after TIME: {time_help}")
    filters.add_argument("--until", type=moment, metavar="TIME", help="only those saved at or before TIME")
    filters.add_argument("--min-step", type=int, metavar="N", help="only those of step N or later")
    filters.add_argument("--max-step", type=int, metavar="N", help="only those of step N or earlier")
    filters.add_argument("--status", help="only those with this status, such as running, completed or failed")
    filters.add_argument("--error-class", metavar="CLASS", help="only those that record a failure of this class, such as storage")
    filters.add_argument("--error-type", metavar="TYPE", help="only those that record an exception of this type, such as KeyError")
    filters.add_argument("--tag", help="only those with this tag")
    filters.add_argument(
        "--min-size", type=byte_count, metavar="SIZE", help="only those that take at least SIZE in the store, such as 10MB"
    )
    filters.add_argument("--max-size", type=byte_count, metavar="SIZE", help="only those that take at most SIZE in the store")
    filters.add_argument(
        "--param",
        type=parameter,
        action="append",
        default=[],
        dest="parameters",
        metavar="NAME=VALUE",
        help="only those whose metadata or configuration has this value, such as lr=0.1; may be repeated",
    )


def run(args: Namespace) -> int:
    """Print the checkpoints."""
    listed = _list(args)
    shown = listed[: args.limit]
    tasks = [each for each in shown if isinstance(each, ListedTask)]
    if args.json:
        print_structs(shown)
    elif tasks:
        print_table(_TASK_COLUMNS, map(astuple, tasks))
        print_error("these are tasks (threads); `ckpt-observe list STORE TASK` lists the checkpoints of one")
    elif shown:
        first = 0 if args.task is None else 1  # without the task, which the user has named: an ID needs the room
        rows = [_row(each)[first:] for each in shown if isinstance(each, ListedCheckpoint)]
        print_table(*drop_empty_columns(_COLUMNS[first:], rows))
    if not listed:
        print_error("no matching checkpoint")
    print_left_out(len(listed), args.limit)
    return OK


def _list(args: Namespace) -> Sequence[ListedCheckpoint | ListedTask]:
    checkpointer = open_checkpointer(args.store)
    if checkpointer is None:
        return _read_foreign(args)
    with checkpointer:
        return _find(checkpointer, args)


def _find(checkpointer: Checkpointer, args: Namespace) -> list[ListedCheckpoint]:
    if args.task is not None:
        check_task(checkpointer, args.task)
    filters = {name: getattr(args, name) for name in _FILTERS if name != "parameters"}
    query = Query(task=args.task, parameters=dict(args.parameters), limit=args.limit + 1, **filters)
    return [_from_info(info) for info in checkpointer.find(query)]


def _from_info(info: CheckpointInfo) -> ListedCheckpoint:
    error = info.metadata.get("error")
    error = error if isinstance(error, dict) else {}
    return ListedCheckpoint(
        task=info.task,
        id=info.id,
        created=info.created,
        step=info.step,
        node=str(info.metadata.get("node") or ""),
        status=info.status,
        size=info.serialized_size,
        stored_size=info.stored_size,
        keys=len(info.keys) or None,
        format=info.format,
        codec=info.codec,
        tags=info.tags,
        error_class=str(error.get("class") or ""),
        error_type=str(error.get("type") or ""),
        metadata=info.metadata,
    )


def _read_foreign(args: Namespace) -> Sequence[ListedCheckpoint | ListedTask]:
    """List the checkpoints or tasks of a database of another library; a file is one checkpoint."""
    if used := [f"--{name.replace('_', '-')}" for name in _FILTERS if getattr(args, name) not in (None, [])]:
        raise ConfigError(f"{', '.join(used)}: only checkpoints in stores of ckpt_observe.core can be filtered. Leave it out")
    contents = readers.read(args.store, task=args.task)
    if checkpoints := contents.breakdown("checkpoint"):
        return _newest_first(from_entry(entry, args.task) for entry in checkpoints.entries)
    if tasks := contents.breakdown("thread") or contents.breakdown("task"):
        return [ListedTask(task=entry.name, checkpoints=entry.items, size=entry.size) for entry in tasks.entries]
    return [_from_contents(contents)]


def _newest_first(checkpoints: Iterable[ListedCheckpoint]) -> list[ListedCheckpoint]:
    """Sort by time: a reader has those of a namespace one after another. Those without a time stay in their order, at the end."""
    return sorted(checkpoints, key=lambda each: each.created or _NO_TIME, reverse=True)


def from_entry(entry: Entry, task: str | None = None) -> ListedCheckpoint:
    """Return the checkpoint that an entry of a reader describes. `task`: the one that was read, for formats that do not repeat it."""
    details = entry.details
    step = details.get("step")
    return ListedCheckpoint(
        task=str(details.get("task", task or "")),
        id=entry.name,
        namespace=str(details.get("namespace", "")),
        created=read_moment(details.get("created")),
        step=step if isinstance(step, int) else None,
        node=str(details.get("node", "")),
        size=entry.size,
        keys=entry.items,
    )


def _from_contents(contents: Contents) -> ListedCheckpoint:
    return ListedCheckpoint(
        task="",
        id=contents.location,
        size=contents.size,
        stored_size=contents.stored_size,
        keys=len(contents.entries),
        format=contents.format,
    )


def _row(listed: ListedCheckpoint) -> Sequence[object]:
    notes = [f"node {listed.node}" if listed.node else "", listed.error_type or listed.error_class, *listed.tags]
    sizes = (listed.keys, listed.size, listed.stored_size)
    return (listed.task, listed.id, listed.namespace, listed.created, listed.step, listed.status, *sizes, ", ".join(filter(None, notes)))
