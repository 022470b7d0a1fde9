"""`ckpt-observe timeline`: draws the operations of a task or a range of time, as text, or as a picture in an SVG or HTML file."""

from __future__ import annotations

import shutil
import sys
import time
from argparse import ArgumentTypeError, Namespace, _SubParsersAction
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import ERROR, NOT_FOUND, OK, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.output import print_error, write_result
from ckpt_observe.cli.trace_arguments import add_filters, add_state_directory, find_trace, operation_filter, recorded_traces
from ckpt_observe.pictures import build_timeline, timeline_page, timeline_svg, timeline_text
from ckpt_observe.pictures.timeline import Bar
from ckpt_observe.query import ObservedOperation, Traces

JSON: Final = {"timeline": Bar}
MAX_OPERATIONS: Final = 2000
"""Operations of a picture, the newest ones. More could not be told apart."""
_DRAWINGS: Final = {".svg": timeline_svg, ".html": timeline_page}
_PIPE_WIDTH: Final = 120


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "timeline",
        run,
        description=command_description(__doc__),
        notes=f"It draws the newest {MAX_OPERATIONS} operations. Long times without an operation are folded.",
        codes=(OK, ERROR, USAGE, NOT_FOUND),
        json="operation",
    )
    parser.add_argument("id", nargs="?", metavar="ID", help="only the trace with this ID or unique ID prefix")
    parser.add_argument("--out", type=_picture, metavar="FILE", help="write a picture to this file: x.svg or x.html")
    add_filters(parser)
    add_state_directory(parser)


def run(args: Namespace) -> int:
    """Print or write the timeline, and return the exit code."""
    with recorded_traces(args) as traces:
        operations = _select(traces, args)
    timeline = build_timeline(operations[:MAX_OPERATIONS], time.time_ns())
    if not timeline.lanes:
        print_error("no matching operations; `ckpt-observe traces` lists what is recorded")
        return NOT_FOUND
    if len(operations) > MAX_OPERATIONS:
        print_error(f"only the newest {MAX_OPERATIONS} operations are drawn; choose a range with --since and --until")
    if args.json:
        print_structs(timeline.bars)
    elif args.out:
        write_result(args.out, _DRAWINGS[args.out.suffix](timeline, f"Checkpoint timeline{f' of {args.task}' if args.task else ''}"))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _PIPE_WIDTH
        print("\n".join(timeline_text(timeline, width)))
    return OK


def _select(traces: Traces, args: Namespace) -> Sequence[ObservedOperation]:
    if args.id:
        return find_trace(traces, args.id)[0].operations
    operations = (operation for operation in traces.operations(operation_filter(args, traces)) if operation.kind == "operation")
    return list(islice(operations, MAX_OPERATIONS + 1))


def _picture(text: str) -> Path:
    if Path(text).suffix not in _DRAWINGS:
        raise ArgumentTypeError(f"{text!r} must end with {' or '.join(_DRAWINGS)}")
    return Path(text)
