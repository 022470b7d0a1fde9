"""`ckpt-observe traces`: lists the newest traces of the local store, shows one as a tree, or prints them for programs."""

from __future__ import annotations

import re
import sys
import time
from argparse import ArgumentTypeError, Namespace, _SubParsersAction
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ckpt_observe import config, query, wiring
from ckpt_observe.cli.exit_codes import ERROR, NOT_FOUND, OK, USAGE
from ckpt_observe.cli.json_output import print_json
from ckpt_observe.cli.output import Column, print_error, print_table, print_tsv, until_pipe_closes
from ckpt_observe.errors import CkptObserveError
from ckpt_observe.journal import unobserved_programs
from ckpt_observe.journal.activity import read_activity
from ckpt_observe.semconv.values import OPERATIONS, OUTCOMES
from ckpt_observe.span import to_json_line
from ckpt_observe.support.formatting import format_duration, format_time, printable, wants_colour
from ckpt_observe.tracestore.tree import render

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}

_MAX_UNOBSERVED: Final = 3

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
        description="Lists the newest traces of the local store, or shows one trace as a tree. One span must match all filters.",
        epilog="Columns of --tsv: id, end in Unix nanoseconds, seconds, operations, errors, interrupted, name. "
        "Exit codes: 0 success, 1 the store cannot be read, 2 wrong usage or ambiguous ID, 4 no such trace or store.",
    )
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("trace", nargs="?", metavar="TRACE_ID", help="show the trace with this ID or unique ID prefix")
    selection.add_argument("--last", action="store_true", help="show the newest trace")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the spans, one JSON object per line")
    form.add_argument("--tsv", action="store_true", help="print the list as tab-separated values without a header")
    parser.add_argument("--limit", type=_positive, default=20, metavar="N", help="show at most N traces (default 20)")
    parser.add_argument("--since", type=_ago, metavar="AGE", help="only traces that ended at most AGE ago: 90s, 15m, 1h, 7d")
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
        if settings.dir.exists():
            wiring.deliver_dead(settings)  # include the operations of dead processes
        with query.open_traces(settings.dir) as traces:
            if not traces.path.exists() and not traces.running():
                reason = f"{traces.path} does not exist; `ckpt-observe doctor` shows records that wait for delivery"
                print_error(f"no traces recorded yet: {reason}")
                _print_unobserved(settings.dir)
                return NOT_FOUND
            code = _show(traces, args) if args.trace else _show_last(traces, args) if args.last else _list(traces, args)
        if dead := read_activity(settings.dir).dead_processes:
            print_error(f"records of dead processes ({dead}) wait for a daemon or a server; for details run: ckpt-observe doctor")
        if not args.trace:
            _print_unobserved(settings.dir)
        return code
    except CkptObserveError as error:
        print_error(error)
        return ERROR


def _print_unobserved(state: Path) -> None:
    """Mention the programs that recorded nothing in their last run: nobody finds what is missing in a list."""
    for program in unobserved_programs.read(state)[:_MAX_UNOBSERVED]:
        print_error(f"{format_time(program.ended_unix_nano)}: {printable(program.describe())}")


def _list(traces: query.Traces, args: Namespace) -> int:
    summaries = traces.traces(_filter(args), limit=args.limit)
    if not summaries:
        print_error("no matching traces")
    _print(traces, summaries, args)
    return OK


def _show_last(traces: query.Traces, args: Namespace) -> int:
    newest = traces.traces(_filter(args), limit=1)
    if not newest:
        print_error("no matching traces")
        return NOT_FOUND
    _print(traces, newest, args, as_tree=True)
    return OK


def _show(traces: query.Traces, args: Namespace) -> int:
    matches = traces.find(args.trace)
    if not matches:
        print_error(f"no trace ID in {traces.path} starts with {args.trace!r}; `ckpt-observe traces` lists the newest")
        return NOT_FOUND
    if len(matches) > 1:
        print_error(f"{args.trace!r} is ambiguous; it matches:")
        print_table(_COLUMNS, map(_row, matches), sys.stderr)
        return USAGE
    _print(traces, matches, args, as_tree=True)
    return OK


def _filter(args: Namespace) -> query.OperationFilter:
    return query.OperationFilter(since_unix_nano=args.since, task_name=args.task, outcome=args.outcome, operation=args.operation)


def _print(traces: query.Traces, summaries: Sequence[query.TraceSummary], args: Namespace, *, as_tree: bool = False) -> None:
    """Print traces in the form that the arguments ask for, by default as trees or as a table."""
    if args.tsv:
        print_tsv(map(_row, summaries))
    elif args.json:
        for summary in summaries:
            for span in traces.spans(summary.trace_id):
                print_json(to_json_line(span))
    elif as_tree:
        for summary in summaries:
            print("\n".join(render(traces.spans(summary.trace_id), colour=wants_colour(sys.stdout))))
    elif summaries:
        print_table(_COLUMNS, map(_row, summaries))


def _row(trace: query.TraceSummary) -> tuple[object, ...]:
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
