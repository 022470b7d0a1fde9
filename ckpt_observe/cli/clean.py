"""`ckpt-observe clean`: removes traces, metrics and what ended processes left. By default it only shows what it would remove.

Records that an exporter has not received are removed only with --undelivered. Nothing is removed while observed programs are running.
Checkpoints are never touched.
"""

from __future__ import annotations

import os
import shutil
from argparse import Namespace, _SubParsersAction
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from ckpt_observe import config
from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import ERROR, OK, PROBLEMS, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.next_commands import how_to_deliver
from ckpt_observe.cli.output import Column, print_error, print_table
from ckpt_observe.cli.trace_arguments import add_state_directory
from ckpt_observe.delivery import daemon, save_index
from ckpt_observe.delivery.companion import running_companions
from ckpt_observe.delivery.removal import remove_dead_journals
from ckpt_observe.errors import ConfigError, TraceStoreError
from ckpt_observe.journal import recording_children, unobserved_programs
from ckpt_observe.journal.directory import DAMAGED_JOURNALS, JOURNALS
from ckpt_observe.metricstore.metric_store import FILENAME as METRICS
from ckpt_observe.query import WaitingJournal, open_traces, read_waiting
from ckpt_observe.support.formatting import format_count, format_size
from ckpt_observe.tracestore import FILENAME as TRACES
from ckpt_observe.tracestore.former_store import FORMER_FILENAME

_PARTS: Final = ("", "-wal", "-shm", "-journal")
"""Suffixes of the files of an SQLite database."""
_FILES: Final = {
    TRACES: "traces",
    FORMER_FILENAME: "traces of an earlier version",
    METRICS: "metrics",
    save_index.FILENAME: "links from loads to their saves",
}
_DIRECTORIES: Final = {
    DAMAGED_JOURNALS: "damaged journals",
    unobserved_programs.DIRECTORY: "notes about unobserved programs",
    recording_children.DIRECTORY: "counts of child processes",
}


class RecordedData(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the recorded data."""

    path: str
    content: str
    bytes: int
    undelivered: bool
    """Whether an exporter has not received all of it."""
    removed: bool = False


JSON: Final = {"clean": RecordedData}
_COLUMNS: Final = (Column("SIZE", format_size, align_right=True), Column("CONTENT"), Column("PATH"))


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "clean",
        run,
        description=command_description(__doc__),
        notes="Code 3 means that it refused, because records are undelivered or programs are running.",
        codes=(OK, ERROR, USAGE, PROBLEMS),
        json="part",
    )
    parser.add_argument("--yes", action="store_true", help="remove the data")
    parser.add_argument("--undelivered", action="store_true", help="also remove records that an exporter has not received")
    add_state_directory(parser)


def run(args: Namespace) -> int:
    """Show or remove the data, and return the exit code."""
    state = config.read(dir=args.dir).dir
    journals = read_waiting(state)
    parts = list(_recorded_data(state, journals))
    if not parts:
        print_error(f"nothing is recorded in {state}")
        return OK
    obstacles = [*_programs(state, journals), *([] if args.undelivered else _undelivered(state, journals))]
    if args.yes and not obstacles:
        parts = _remove(state, parts)
    if args.json:
        print_structs(parts)
    else:
        print_table(_COLUMNS, [(part.bytes, part.content, part.path) for part in parts])
    for obstacle in obstacles:
        print_error(obstacle)
    if obstacles:
        if args.yes:
            print_error("nothing was removed")
        return PROBLEMS
    total = format_size(sum(part.bytes for part in parts))
    print_error(f"removed {total}" if args.yes else f"nothing was removed; to remove these {total}, add --yes")
    return OK


def _recorded_data(state: Path, journals: list[WaitingJournal]) -> Iterator[RecordedData]:
    for name, content in _FILES.items():
        size = sum(map(_file_size, _database(state / name)))
        if size:
            text = _describe_traces(state) if name == TRACES else content
            yield RecordedData(path=str(state / name), content=text, bytes=size, undelivered=False)
    for journal in journals:
        path = state / JOURNALS / journal.name
        owner = f"records of process {journal.pid} ({journal.service}), {'running' if journal.is_alive else 'ended'}"
        yield RecordedData(path=str(path), content=owner, bytes=_size(path), undelivered=journal.is_waiting)
    for name, content in _DIRECTORIES.items():
        if (state / name).is_dir():
            yield RecordedData(path=str(state / name), content=content, bytes=_size(state / name), undelivered=name == DAMAGED_JOURNALS)


def _describe_traces(state: Path) -> str:
    try:
        with open_traces(state) as traces:
            totals = traces.totals()
    except TraceStoreError as error:  # the more reason to remove it
        return f"traces that cannot be read: {error.__cause__ or error}"
    return f"{format_count(totals.traces, 'trace')} with {format_count(totals.operations, 'operation')}"


def _programs(state: Path, journals: list[WaitingJournal]) -> Iterator[str]:
    """Yield why the data is in use."""
    live = [str(journal.pid) for journal in journals if journal.is_alive]
    if live:
        yield f"observed programs are running (process {', '.join(live)}); stop them first, or wait until they have ended"
    if daemon.is_running(state):
        yield "a daemon is running; stop it first"
    if running_companions(state):
        yield "a companion is running; it ends a few seconds after the last program that it delivers for"


def _undelivered(state: Path, journals: list[WaitingJournal]) -> Iterator[str]:
    for journal in journals:
        if journal.is_waiting and not journal.is_alive:
            exporters = ", ".join(f"{format_size(size)} for {name.partition('@')[0]}" for name, size in journal.waiting.items())
            what = exporters or journal.problem or "operations in memory"
            owner = "" if journal.pid is None else f", of process {journal.pid} ({journal.service})"
            yield f"undelivered: {what}{owner}; {how_to_deliver(journal)}, or add --undelivered"
    damaged = state / DAMAGED_JOURNALS
    if damaged.is_dir() and any(damaged.iterdir()):
        yield f"undelivered: {format_size(_size(damaged))} of damaged journals in {damaged}; keep a copy, or add --undelivered"


def _remove(state: Path, parts: list[RecordedData]) -> list[RecordedData]:
    try:
        remove_dead_journals(state)
        for name in _FILES:
            for path in _database(state / name):
                path.unlink(missing_ok=True)
        for name in _DIRECTORIES:
            shutil.rmtree(state / name, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be removed ({error.strerror}); check the permissions of {state}") from error
    return [msgspec.structs.replace(part, removed=not os.path.exists(part.path)) for part in parts]


def _database(path: Path) -> list[Path]:
    candidates = (path.with_name(path.name + suffix) for suffix in _PARTS)
    return [candidate for candidate in candidates if candidate.exists()]


def _size(directory: Path) -> int:
    return sum(_file_size(Path(parent, name)) for parent, _, names in os.walk(directory) for name in names)


def _file_size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except FileNotFoundError:  # a program that runs has removed it since it was listed
        return 0
