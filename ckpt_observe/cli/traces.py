"""`ckpt-observe traces`: lists the newest traces, running ones first, shows one as a tree, or prints their spans for programs."""

from __future__ import annotations

import sys
import time
from argparse import Namespace, _SubParsersAction
from collections.abc import Sequence
from shlex import quote
from typing import Any, Final

from msgspec import structs

from ckpt_observe.cli.argument_types import positive_count
from ckpt_observe.cli.commands import add_command
from ckpt_observe.cli.exit_codes import ERROR, NOT_FOUND, OK, USAGE
from ckpt_observe.cli.json_output import print_json
from ckpt_observe.cli.output import Column, print_error, print_left_out, print_table, print_tsv
from ckpt_observe.cli.trace_arguments import (
    ID_LENGTH,
    add_filters,
    add_state_directory,
    find_trace,
    operation_filter,
    print_missing,
    print_omission,
    print_unobserved,
    read_settings,
    recorded_traces,
)
from ckpt_observe.errors import TraceNotFoundError
from ckpt_observe.query import ObservedOperation, Traces, TraceSummary
from ckpt_observe.semconv.spans import TASK_PREFIX
from ckpt_observe.span import Span, to_json_line
from ckpt_observe.support.formatting import format_duration, format_time, wants_colour
from ckpt_observe.tracestore.tree import render

JSON: Final = {"traces": Span}
_COLUMNS: Final = (
    Column("TRACE", lambda trace_id: str(trace_id)[:ID_LENGTH], whole=True),
    Column("LAST", format_time, align_right=True, whole=True),
    Column("DURATION", format_duration, align_right=True),
    Column("OPERATIONS", align_right=True),
    Column("ERRORS", align_right=True, style=lambda count: "red" if count else ""),
    Column("INTERRUPTED", align_right=True, style=lambda count: "magenta" if count else ""),
    Column("NAME"),
)
_RUNNING: Final = Column("RUNNING", style=lambda _: "blue")


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "traces",
        run,
        description="Lists the newest traces, running ones first, or shows one trace as a tree. One operation must match all filters.",
        notes="Columns of --tsv: id, end in Unix nanoseconds, seconds, operations, errors, interrupted, name.",
        codes=(OK, ERROR, USAGE, NOT_FOUND),
    )
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("trace", nargs="?", metavar="ID", help="show the trace with this ID or unique ID prefix")
    selection.add_argument("--last", action="store_true", help="show the newest trace")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print each span as a JSON object on its own line")
    form.add_argument("--tsv", action="store_true", help="print the list as tab-separated values without a header")
    parser.add_argument("--limit", type=positive_count, default=20, metavar="N", help="show at most N traces (default 20)")
    add_filters(parser)
    add_state_directory(parser)


def run(args: Namespace) -> int:
    """Print the list, the tree or the spans, and return the exit code."""
    with recorded_traces(args) as traces:
        try:
            summaries = _find(traces, args)
        except TraceNotFoundError:
            print_missing(read_settings(args))
            raise
        _print(traces, summaries[: args.limit], args)
        newest_run = _find_newest_run(traces, args, summaries[0]) if args.last and summaries else None
    print_left_out(len(summaries), args.limit)
    if newest_run is not None:
        directory = "" if args.dir is None else f" --dir {quote(args.dir)}"
        command = f"ckpt-observe traces {newest_run.trace_id[:ID_LENGTH]}{directory}"
        print_error(f"this trace is one operation outside a run; `{command}` shows the newest run")
    if not summaries:
        print_error("no matching traces; `ckpt-observe traces` without filters lists all")
    settings = read_settings(args)
    print_missing(settings, elsewhere=True)
    if not args.trace:
        print_unobserved(settings)
        print_omission(settings)
    return NOT_FOUND if args.last and not summaries else OK


def _find(traces: Traces, args: Namespace) -> Sequence[TraceSummary]:
    if args.trace:
        trace, _ = find_trace(traces, args.trace)
        return [trace.summary]
    return traces.traces(operation_filter(args, traces), limit=1 if args.last else args.limit + 1)


def _find_newest_run(traces: Traces, args: Namespace, newest: TraceSummary) -> TraceSummary | None:
    """Return the newest run of the same program, if the newest trace is a single operation, such as LangGraph's `get_state` after a run."""
    if newest.name.startswith(TASK_PREFIX) or newest.operations > 1:
        return None
    services = {span.resource.get("service.name") for span in traces.spans(newest.trace_id)}
    same_program = structs.replace(operation_filter(args, traces), service=next(iter(services), None))
    recent = traces.traces(same_program, limit=args.limit)
    return next((trace for trace in recent if trace.name.startswith(TASK_PREFIX)), None)


def _print(traces: Traces, summaries: Sequence[TraceSummary], args: Namespace) -> None:
    """Print traces in the form that the arguments ask for, by default as trees or as a table."""
    if args.tsv:
        print_tsv(map(_row, summaries))
    elif args.json:
        for summary in summaries:
            for span in traces.spans(summary.trace_id):
                print_json(to_json_line(span))
    elif args.trace or args.last:
        for summary in summaries:
            print("\n".join(render(traces.spans(summary.trace_id), colour=wants_colour(sys.stdout))))
    elif summaries:
        _print_table(traces, summaries)


def _print_table(traces: Traces, summaries: Sequence[TraceSummary]) -> None:
    """Print the list. Only if something is running, there is a column for that."""
    running: dict[str, ObservedOperation] = {}
    if any(summary.running for summary in summaries):
        for operation in traces.running():
            if operation.kind == "operation" or operation.trace_id not in running:
                running[operation.trace_id] = operation
    columns = (*_COLUMNS[:-1], _RUNNING, _COLUMNS[-1]) if running else _COLUMNS
    rows = []
    for summary in summaries:
        row = _row(summary)
        rows.append((*row[:-1], describe_running(running.get(summary.trace_id)), row[-1]) if running else row)
    print_table(columns, rows)


def describe_running(operation: ObservedOperation | None) -> str:
    """Return what an operation is doing, such as `save 4m 02s, in write`."""
    if operation is None:
        return ""
    name = operation.name if operation.kind == "operation" else operation.kind
    phase = f", in {operation.phase}" if operation.phase else ""
    return f"{name} {format_duration(operation.seconds(time.time_ns()))}{phase}"


def _row(trace: TraceSummary) -> tuple[object, ...]:
    seconds = (trace.end_unix_nano - trace.start_unix_nano) / 1e9
    return (trace.trace_id, trace.end_unix_nano, seconds, trace.operations, trace.errors, trace.interrupted, trace.name)
