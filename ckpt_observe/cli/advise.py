"""`ckpt-observe advise`: recommends, from recorded saves and failures, how often to save and which phase, codec or key to change."""

from __future__ import annotations

import shutil
import sys
import textwrap
from argparse import Namespace, _SubParsersAction
from typing import Any, Final

from msgspec.structs import replace

from ckpt_observe.cli.argument_types import duration, moment, positive_duration
from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import ERROR, NOT_FOUND, OK, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.output import print_error
from ckpt_observe.cli.trace_arguments import add_state_directory, find_task, print_omission, read_settings, recorded_traces
from ckpt_observe.support.formatting import printable
from ckpt_observe.tuning import Assumptions, Recommendation, recommend
from ckpt_observe.tuning.recommendations import MIN_SAVES

JSON: Final = {"advise": Recommendation}
_PIPE_WIDTH: Final = 120


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "advise",
        run,
        description=command_description(__doc__),
        notes=f"A task needs {MIN_SAVES} recorded saves. The interval is the optimum for the measured cost of a save and rate of failures.",
        codes=(OK, ERROR, USAGE, NOT_FOUND),
        json="recommendation",
    )
    parser.add_argument("--task", metavar="NAME", help="only this task, program or run")
    parser.add_argument("--since", type=moment, metavar="TIME", help="only operations since TIME, such as 7d or 2026-01-31T12:00Z")
    parser.add_argument("--mtbf", type=positive_duration, metavar="TIME", help="mean time between failures (default: measured)")
    parser.add_argument("--recovery", type=duration, metavar="TIME", help="time until a restarted program works again (default: measured)")
    add_state_directory(parser)


def run(args: Namespace) -> int:
    """Print the recommendations."""
    since = None if args.since is None else int(args.since.timestamp() * 1e9)
    with recorded_traces(args) as traces:
        statistics = traces.statistics(replace(find_task(traces, args.task), since_unix_nano=since))
    print_omission(read_settings(args))
    recommendations = list(recommend(statistics, Assumptions(args.mtbf, args.recovery)))
    if not recommendations:
        subject = "" if args.task is None else f" of {args.task!r}"
        print_error(f"too few saves{subject} are recorded: a task needs {MIN_SAVES}; `ckpt-observe stats` shows what was recorded")
        return NOT_FOUND
    if args.json:
        print_structs(recommendations)
    else:
        print("\n\n".join(_paragraph(recommendation) for recommendation in recommendations))
    return OK


def _paragraph(recommendation: Recommendation) -> str:
    width = max(shutil.get_terminal_size().columns, 60) if sys.stdout.isatty() else _PIPE_WIDTH
    title = f"task {recommendation.task}" if recommendation.task else recommendation.system or "all tasks"
    text = printable(f"{recommendation.action} {recommendation.reason}")
    lines = textwrap.wrap(text, width - 2, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join([printable(f"{title}: {recommendation.subject}"), *lines])
