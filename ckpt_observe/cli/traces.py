"""`ckpt-observe traces`: the newest traces of the local store, one of them as a tree, or their spans as JSON lines."""

from __future__ import annotations

import re
import sys
import time
from argparse import ArgumentTypeError, Namespace, _SubParsersAction
from collections.abc import Iterable
from typing import Any, Final

from ckpt_observe import config, wiring
from ckpt_observe.cli.output import ERROR, NOT_FOUND, OK, USAGE, Column, complain, print_table, until_pipe_closes
from ckpt_observe.errors import CkptObserveError
from ckpt_observe.journal.activity import read_activity
from ckpt_observe.semconv.values import OPERATIONS, OUTCOMES
from ckpt_observe.span import to_json_line
from ckpt_observe.tracestore import FILENAME, TraceFilter, TraceReader, TraceSummary
from ckpt_observe.tracestore.formatting import format_duration, format_time, wants_colour
from ckpt_observe.tracestore.tree import render

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

_COLUMNS: Final = (
    Column("TRACE", lambda trace_id: str(trace_id)[:12]),
    Column("LAST", format_time, right=True),
    Column("DURATION", format_duration, right=True),
    Column("OPERATIONS", right=True),
    Column("ERRORS", right=True),
    Column("INTERRUPTED", right=True),
    Column("NAME"),
)


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "traces",
        help="list the newest traces, or show one as a tree",
        description="Lists the newest traces of the local store; with the beginning of a trace's id, shows that trace as a tree. "
        "Into a pipe the list has tabs and no header: id, end in Unix nanoseconds, seconds, operations, errors, interrupted, name.",
        epilog="Exit codes: 0 done, 1 the store cannot be read, 2 wrong usage or an ambiguous id, 4 no such trace or store.",
    )
    parser.add_argument("trace", nargs="?", metavar="TRACE_ID", help="a trace's id, or so much of its beginning as is unique")
    parser.add_argument("--json", action="store_true", help="print the spans, one JSON object a line")
    parser.add_argument("--limit", type=_positive, default=20, metavar="N", help="at most so many traces (default 20)")
    parser.add_argument("--since", type=_ago, default=0, metavar="AGE", help="only what ended since then: 90s, 15m, 1h, 7d")
    parser.add_argument("--task", metavar="NAME", help="only traces of the task with this name")
    parser.add_argument("--outcome", choices=OUTCOMES, help="only traces in which something ended so")
    parser.add_argument("--operation", choices=OPERATIONS, help="only traces with this operation")
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")
    parser.set_defaults(run=run)


@until_pipe_closes
def run(args: Namespace) -> int:
    """Prints what was asked for; returns the exit code."""
    try:
        settings = config.read(dir=args.dir, exporters="local")
        path = settings.dir / FILENAME
        if settings.dir.exists():
            wiring.deliver_dead(settings)  # what dead processes left is part of the picture
        if not path.exists():
            complain(f"nothing is recorded yet: there is no {path}; what waits for delivery is told by `ckpt-observe doctor`")
            return NOT_FOUND
        with TraceReader(path) as reader:
            code = _show(reader, args) if args.trace else _list(reader, args)
        if left := read_activity(settings.dir).dead_processes:
            complain(f"what ended processes left ({left}) waits for a daemon or a server: `ckpt-observe doctor` says which")
        return code
    except CkptObserveError as error:
        complain(error)
        return ERROR


def _list(reader: TraceReader, args: Namespace) -> int:
    matching = TraceFilter(task_name=args.task, outcome=args.outcome, operation=args.operation)
    traces = reader.newest(args.limit, since_unix_nano=args.since, matching=matching)
    if args.json:
        _print_json(reader, traces)
    elif traces:
        print_table(_COLUMNS, map(_row, traces))
    else:
        complain("no such traces")
    return OK


def _show(reader: TraceReader, args: Namespace) -> int:
    found = reader.find(args.trace)
    if not found:
        complain(f"no trace begins with {args.trace!r} in {reader.path}: `ckpt-observe traces` lists them")
        return NOT_FOUND
    if len(found) > 1:
        complain(f"{args.trace!r} is ambiguous; it begins the ids of:")
        print_table(_COLUMNS, map(_row, found), sys.stderr)
        return USAGE
    if args.json:
        _print_json(reader, found)
    else:
        print("\n".join(render(reader.spans(found[0].trace_id), colour=wants_colour(sys.stdout))))
    return OK


def _print_json(reader: TraceReader, traces: Iterable[TraceSummary]) -> None:
    for trace in traces:
        for span in reader.spans(trace.trace_id):
            print(to_json_line(span))


def _row(trace: TraceSummary) -> tuple[object, ...]:
    seconds = (trace.end_unix_nano - trace.start_unix_nano) / 1e9
    return (trace.trace_id, trace.end_unix_nano, seconds, trace.operations, trace.errors, trace.interrupted, trace.name)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ArgumentTypeError(f"{text!r} is not a number above zero")
    return int(text)


def _ago(text: str) -> int:
    """The Unix nanosecond that lies so long ago."""
    match = re.fullmatch(r"(\d+)([smhdw])", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not an age such as 90s, 15m, 1h or 7d")
    return time.time_ns() - int(match[1]) * _SECONDS[match[2]] * 1_000_000_000
