"""`ckpt-observe traces`: lists the newest traces of the local store, shows one as a tree, or prints their spans as JSON lines."""

from __future__ import annotations

import re
import sys
import time
from argparse import ArgumentTypeError, Namespace, _SubParsersAction
from collections.abc import Iterable
from typing import Any, Final

from ckpt_observe import config, wiring
from ckpt_observe.cli.output import ERROR, NOT_FOUND, OK, USAGE, Column, print_error, print_table, until_pipe_closes
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
    Column("LAST", format_time, align_right=True),
    Column("DURATION", format_duration, align_right=True),
    Column("OPERATIONS", align_right=True),
    Column("ERRORS", align_right=True),
    Column("INTERRUPTED", align_right=True),
    Column("NAME"),
)


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "traces",
        help="list the newest traces, or show one as a tree",
        description="Lists the newest traces of the local store, or shows one trace as a tree. One span must match all filters. "
        "In a pipe, the list is tab-separated without a header: "
        "id, end in Unix nanoseconds, seconds, operations, errors, interrupted, name.",
        epilog="Exit codes: 0 success, 1 the store cannot be read, 2 wrong usage or ambiguous ID, 4 no such trace or store.",
    )
    parser.add_argument("trace", nargs="?", metavar="TRACE_ID", help="trace ID or unique ID prefix")
    parser.add_argument("--json", action="store_true", help="print the spans, one JSON object per line")
    parser.add_argument("--limit", type=_positive, default=20, metavar="N", help="show at most N traces (default 20)")
    parser.add_argument("--since", type=_ago, default=0, metavar="AGE", help="only traces that ended at most AGE ago: 90s, 15m, 1h, 7d")
    parser.add_argument("--task", metavar="NAME", help="only traces of the task with this name")
    parser.add_argument("--outcome", choices=OUTCOMES, help="only traces in which a span has this outcome")
    parser.add_argument("--operation", choices=OPERATIONS, help="only traces that contain this operation")
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")
    parser.set_defaults(run=run)


@until_pipe_closes
def run(args: Namespace) -> int:
    """Print the list, the tree or the spans, and return the exit code."""
    try:
        settings = config.read(dir=args.dir, exporters="local")
        path = settings.dir / FILENAME
        if settings.dir.exists():
            wiring.deliver_dead(settings)  # include the operations of dead processes
        if not path.exists():
            print_error(f"no traces recorded yet: {path} does not exist; `ckpt-observe doctor` shows records that wait for delivery")
            return NOT_FOUND
        with TraceReader(path) as reader:
            code = _show(reader, args) if args.trace else _list(reader, args)
        if dead := read_activity(settings.dir).dead_processes:
            print_error(f"records of dead processes ({dead}) wait for a daemon or a server; for details run: ckpt-observe doctor")
        return code
    except CkptObserveError as error:
        print_error(error)
        return ERROR


def _list(reader: TraceReader, args: Namespace) -> int:
    matching = TraceFilter(task_name=args.task, outcome=args.outcome, operation=args.operation)
    traces = reader.newest(args.limit, since_unix_nano=args.since, matching=matching)
    if args.json:
        _print_json(reader, traces)
    elif traces:
        print_table(_COLUMNS, map(_row, traces))
    else:
        print_error("no matching traces")
    return OK


def _show(reader: TraceReader, args: Namespace) -> int:
    matches = reader.find(args.trace)
    if not matches:
        print_error(f"no trace ID in {reader.path} starts with {args.trace!r}; `ckpt-observe traces` lists the newest")
        return NOT_FOUND
    if len(matches) > 1:
        print_error(f"{args.trace!r} is ambiguous; it matches:")
        print_table(_COLUMNS, map(_row, matches), sys.stderr)
        return USAGE
    if args.json:
        _print_json(reader, matches)
    else:
        print("\n".join(render(reader.spans(matches[0].trace_id), colour=wants_colour(sys.stdout))))
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
        raise ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _ago(text: str) -> int:
    """Return the current time minus a duration such as `90s`, in Unix nanoseconds."""
    match = re.fullmatch(r"(\d+)([smhdw])", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a duration: use a whole number and s, m, h, d or w, such as 90s, 15m, 1h or 7d")
    return time.time_ns() - int(match[1]) * _SECONDS[match[2]] * 1_000_000_000
