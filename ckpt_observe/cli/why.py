"""`ckpt-observe why`: explains an operation in sentences: what happened, why, what to do, what it means for the run, what else failed."""

from __future__ import annotations

import shutil
import sys
import textwrap
import time
from argparse import Namespace, _SubParsersAction
from typing import Any, Final

from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import ERROR, NOT_FOUND, OK, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.output import print_error
from ckpt_observe.cli.trace_arguments import (
    add_state_directory,
    find_task,
    find_trace,
    print_missing,
    read_settings,
    recorded_traces,
    short_id,
)
from ckpt_observe.explain import TITLES, Explainer, OperationExplanation
from ckpt_observe.query import ObservedOperation, Traces
from ckpt_observe.support.formatting import printable

JSON: Final = {"why": OperationExplanation}
MAX_EXPLANATIONS: Final = 5
"""Operations of one trace that are explained."""
_LABEL_WIDTH: Final = 2 + max(map(len, TITLES.values()))
_MIN_WIDTH: Final = 60
_PIPE_WIDTH: Final = 120


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "why",
        run,
        description=command_description(__doc__),
        notes="Of a trace, it explains what failed; if nothing did, what is running, was slow, waited for a slow rank, or took longest.",
        codes=(OK, ERROR, USAGE, NOT_FOUND),
        json="explanation",
    )
    id_help = "ID of a trace or operation, as `traces` and `tail` print it (default: the newest failure)"
    selection = parser.add_mutually_exclusive_group()
    selection.add_argument("id", nargs="?", metavar="ID", help=id_help)
    selection.add_argument("--task", metavar="NAME", help="explain the newest failure of this task, program or run")
    add_state_directory(parser)


def run(args: Namespace) -> int:
    """Print the explanations and return the exit code."""
    with recorded_traces(args) as traces:
        explainer = Explainer(traces, time.time_ns())
        print_missing(read_settings(args))  # the newest failure may be among them
        operations = _select(traces, explainer, args.id, args.task)
        if not operations:
            subject = "no operation" if args.task is None else f"no operation of {args.task!r}"
            print_error(f"{subject} failed or was interrupted; to have another one explained, give its ID from `ckpt-observe traces`")
            return OK
        explanations = [explainer.explain(operation) for operation in operations[:MAX_EXPLANATIONS]]
    if args.json:
        print_structs(explanations)
    else:
        print("\n\n".join("\n".join(explanation_lines(explanation)) for explanation in explanations))
    if more := operations[MAX_EXPLANATIONS:]:
        print_error(f"{len(more)} more operations of this trace failed; to explain one, give its ID: {', '.join(map(short_id, more[:3]))}")
    return OK


def _select(traces: Traces, explainer: Explainer, id: str | None, task: str | None) -> list[ObservedOperation]:
    if id is None:
        failure = explainer.newest_failure(find_task(traces, task))
        return [failure] if failure else []
    trace, operation = find_trace(traces, id)
    return [operation] if operation else explainer.select(trace)


def explanation_lines(explanation: OperationExplanation) -> list[str]:
    """Return an explanation as text: a paragraph for each topic, with its title."""
    width = max(shutil.get_terminal_size().columns, _MIN_WIDTH) if sys.stdout.isatty() else _PIPE_WIDTH
    lines = []
    for title, paragraph in explanation.paragraphs().items():
        text = textwrap.wrap(printable(paragraph), width - _LABEL_WIDTH, break_long_words=False, break_on_hyphens=False)
        lines += [f"{label.ljust(_LABEL_WIDTH)}{line}" for label, line in zip([title, *[""] * len(text)], text, strict=False)]
    return lines
