"""`ckpt-observe show` and `diff`: what is in a checkpoint, file, directory, database or store, and what differs between two."""

from __future__ import annotations

import os
from argparse import Namespace, _SubParsersAction
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from ckpt_observe import readers
from ckpt_observe.cli.argument_types import positive_count, reference
from ckpt_observe.cli.checkpoint_source import REF_HELP, add_store, check_task, find_checkpoint, require_checkpointer, store_url
from ckpt_observe.cli.commands import add_command
from ckpt_observe.cli.exit_codes import ERROR, NOT_FOUND, OK, PROBLEMS, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.output import Column, drop_empty_columns, print_error, print_table
from ckpt_observe.cli.store_listing import format_moment, read_moment
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError
from ckpt_observe.readers import Breakdown, Contents, ContentsDiff, Entry, EntryChange
from ckpt_observe.support.formatting import format_size, printable

JSON: Final = {"show": Contents, "diff": ContentsDiff}
_OTHER: Final = "other"
_MARKS: Final = {"added": "+", "removed": "-", "changed": "~"}
_STYLES: Final = {"+": "green", "-": "red", "~": "yellow"}
_DIFF_USAGE: Final = "diff compares two files (FILE FILE) or two checkpoints of a task or of two tasks (STORE TASK REF [TASK] REF)"
_NOTHING_IS_EXECUTED: Final = "Nothing in a checkpoint is executed: a pickle is parsed and not loaded, and no class is imported."


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the commands."""
    show = add_command(
        subparsers,
        "show",
        run_show,
        description="Shows keys, types, shapes and bytes, the largest first: of a whole store or database, of a task (LangGraph: thread), "
        "or of one checkpoint.",
        notes=_NOTHING_IS_EXECUTED,
        codes=(OK, ERROR, USAGE, NOT_FOUND),
        json="result",
    )
    add_store(show)
    show.add_argument("task", nargs="?", metavar="TASK", help="only this task (LangGraph: thread)")
    show.add_argument("reference", nargs="?", type=reference, metavar="REF", help=REF_HELP)
    show.add_argument("--by", metavar="GROUP", help="also group the bytes by task (LangGraph: thread), step or checkpoint")
    show.add_argument("--depth", type=positive_count, default=1, metavar="N", help="levels of nested keys (default 1)")
    show.add_argument("--limit", type=positive_count, default=20, metavar="N", help="entries of each level (default 20)")
    diff = add_command(
        subparsers,
        "diff",
        run_diff,
        description="Compares two checkpoints of a task or of two tasks, or two files, directories or databases: keys that were added, "
        "removed or changed.",
        notes="Marks: + added, - removed, ~ changed. Values of the same type and size whose format has no digests may differ: they are "
        f"counted separately and do not change the exit code. {_NOTHING_IS_EXECUTED}",
        codes=(OK, ERROR, USAGE, PROBLEMS, NOT_FOUND),
        json="result",
    )
    diff.add_argument("operands", nargs="+", metavar="STORE TASK REF [TASK] REF | FILE FILE", help=f"what to compare. REF is a {REF_HELP}")
    diff.add_argument("--depth", type=positive_count, default=1, metavar="N", help="levels of nested keys (default 1)")


def read_contents(location: str, task: str | None = None, reference: str | None = None, depth: int = 1) -> Contents:
    """Read a location. In a store of the core, the reference may also be a unique start of an ID, and messages suggest names."""
    url = store_url(location)
    if url is not None and task is not None:
        with require_checkpointer(url, "show") as checkpointer:
            check_task(checkpointer, task)
            reference = None if reference is None else find_checkpoint(checkpointer, task, reference).id
    return readers.read(location, depth=depth, task=task, checkpoint=reference)


def run_show(args: Namespace) -> int:
    """Print the contents."""
    contents = read_contents(args.store, args.task, args.reference, args.depth)
    if args.json:
        print_structs([contents])
        return OK
    breakdown = _breakdown(contents, args.by)
    summary = list(_summary(contents))
    width = max(len(name) for name, _ in summary)
    for name, value in summary:
        print(f"{name:{width}}  {printable(value)}")
    _print_warnings([contents])
    is_channel = contents.format.startswith("langgraph")
    _print_entries("CHANNEL" if is_channel else "KEY", contents.entries, contents.size, contents.other_size, args.limit)
    if breakdown is not None:
        _print_entries(breakdown.by.upper(), breakdown.entries, contents.size, breakdown.other_size, args.limit)
    return OK


def _print_warnings(read: Iterable[Contents]) -> None:
    for warning in dict.fromkeys(warning for contents in read for warning in contents.warnings):
        print_error(f"warning: {printable(warning)}")


def _breakdown(contents: Contents, by: str | None) -> Breakdown | None:
    """Return the breakdown that the user asked for; by default the first one (by task or thread), if it has more than one entry."""
    if by is None:
        first = contents.breakdowns[0] if contents.breakdowns else None
        return first if first is not None and len(first.entries) > 1 else None
    breakdown = contents.breakdown(by)
    if breakdown is None:
        names = ", ".join(breakdown.by for breakdown in contents.breakdowns) or "none, because this is a single checkpoint"
        raise ConfigError(f"--by {by!r}: there is no such group; available: {names}")
    return breakdown


def _summary(contents: Contents) -> Iterator[tuple[str, str]]:
    yield "location", contents.location
    yield "format", f"{contents.format} {contents.version}".strip()
    stored = "" if contents.stored_size is None else f", {format_size(contents.stored_size)} stored"
    yield "size", format_size(contents.size) + stored
    for name, size in (("repeated", contents.repeated_size), ("prunable", contents.prunable_size)):
        if size is not None:
            meaning = "stored again unchanged" if name == "repeated" else "free if only the newest checkpoint of each task was left"
            yield name, f"{format_size(size)} {meaning}"
    for name, value in contents.metadata.items():
        if name != "stored_size" and value not in (None, "", {}, []):
            shown = format_moment(read_moment(value)) or value if name == "created" else value
            yield ("state format", str(value)) if name == "format" else describe_detail(name, shown)
    if contents.imports:
        yield "imports", ", ".join(contents.imports)


def _print_entries(title: str, entries: Sequence[Entry], size: int, other_size: int, limit: int) -> None:
    columns = (
        Column(title),
        Column("TYPE"),
        Column("SHAPE"),
        Column("ITEMS", align_right=True),
        Column("SIZE", format_size, align_right=True),
        Column("SHARE", lambda share: f"{share:.1%}", align_right=True),
        Column("DETAILS"),
    )
    rows = list(_rows(entries, size, limit))
    if other_size:
        rows.append((_OTHER, "", "", "", other_size, _share(other_size, size), "headers and structure"))
    if rows:
        print()
        print_table(*drop_empty_columns(columns, rows))


def _rows(entries: Sequence[Entry], size: int, limit: int, indent: str = "") -> Iterator[Sequence[object]]:
    for entry in entries[:limit]:
        shape = "" if entry.shape is None else f"{entry.dtype}[{', '.join(map(str, entry.shape))}]"
        items = "" if entry.items is None else str(entry.items)
        shown = {} if entry.type == "checkpoint" else entry.details  # `list` shows those of a checkpoint
        details = ", ".join(" ".join(describe_detail(name, value)) for name, value in shown.items())
        yield (indent + entry.name, entry.type, shape, items, entry.size, _share(entry.size, size), details)
        yield from _rows(entry.children, size, limit, indent + "  ")
    if rest := entries[limit:]:
        rest_size = sum(entry.size for entry in rest)
        yield (f"{indent}{len(rest)} more (--limit)", "", "", "", rest_size, _share(rest_size, size), "")


def describe_detail(name: str, value: object) -> tuple[str, str]:
    """Return name and value of a detail of a format as words: `largest_size`, 22510 becomes `largest`, `22.5 kB`."""
    if name.endswith("_size") and isinstance(value, int):
        return name.removesuffix("_size"), format_size(value)
    return name.replace("_", " "), str(value)


def _share(size: int, total: int) -> float:
    return size / total if total else 0.0


def run_diff(args: Namespace) -> int:
    """Print the differences. The exit code says whether there are any."""
    if len(args.operands) == 2:
        first, second = args.operands
        old = read_contents(first, depth=args.depth)
        if "://" not in second and not os.path.lexists(os.path.expanduser(second)):  # a task, perhaps
            raise CheckpointNotFoundError(f"{second!r} does not exist; {_DIFF_USAGE}", code="not_found.path")
        new = read_contents(second, depth=args.depth)
    elif len(args.operands) in (4, 5):
        store, task, first, *other_task, second = args.operands
        checkpoints = ((task, first), (other_task[0] if other_task else task, second))
        old, new = (read_contents(store, each, reference(ref), args.depth) for each, ref in checkpoints)
    else:
        raise ConfigError(_DIFF_USAGE)
    difference = readers.diff(old, new)
    if args.json:
        print_structs([difference])
    else:
        _print_warnings([old, new])
        _print_difference(difference)
    return PROBLEMS if difference.changes else OK


def _print_difference(difference: ContentsDiff) -> None:
    columns = (
        Column("", style=lambda mark: _STYLES[mark]),
        Column("KEY"),
        Column("OLD", align_right=True),
        Column("NEW", align_right=True),
        Column("GROWTH", align_right=True),
        Column("DIFFERS"),
    )
    if difference.changes:
        print_table(columns, map(_change_row, difference.changes))
    counts = f"{len(difference.changes)} changed, {len(difference.unchanged)} unchanged"
    unclear = f", {len(difference.unclear)} with the same type and size but without a digest" if difference.unclear else ""
    print_error(counts + unclear)


def _change_row(change: EntryChange) -> Sequence[str]:
    sizes = ("" if entry is None else format_size(entry.size) for entry in (change.old, change.new))
    growth = ("+" if change.growth > 0 else "-" if change.growth < 0 else "") + format_size(abs(change.growth))
    return (_MARKS[change.kind], ".".join(change.path), *sizes, growth, "; ".join(_describe_changes(change)))


def _describe_changes(change: EntryChange) -> Iterator[str]:
    for field in change.differs:
        if field == "digest":
            yield "content"
        elif field != "size" and change.old is not None and change.new is not None:
            yield f"{field} {getattr(change.old, field)} → {getattr(change.new, field)}"
