"""`ckpt-observe report`: writes all about one trace to a single HTML file, for a ticket. It has no script, and loads nothing.

The report contains the explanation of what failed, the timeline, the tree, all attributes and errors, and the versions. Secrets, user and
session IDs and the home directory are left out.
"""

from __future__ import annotations

import time
from argparse import Namespace, _SubParsersAction
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, Final

from ckpt_observe import __version__
from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import ERROR, NOT_FOUND, OK, USAGE
from ckpt_observe.cli.output import write_result
from ckpt_observe.cli.trace_arguments import add_state_directory, find_trace, recorded_traces
from ckpt_observe.explain import Explainer
from ckpt_observe.libraries import LIBRARIES
from ckpt_observe.pictures import report_page
from ckpt_observe.tracestore.tree import render

MAX_EXPLANATIONS: Final = 20


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "report",
        run,
        description=command_description(__doc__),
        codes=(OK, ERROR, USAGE, NOT_FOUND),
    )
    parser.add_argument("id", metavar="ID", help="ID of a trace or operation, as `traces` and `tail` print it")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file, such as report.html")
    add_state_directory(parser)


def run(args: Namespace) -> int:
    """Write the report and return the exit code."""
    now = time.time_ns()
    with recorded_traces(args) as traces:
        trace, operation = find_trace(traces, args.id)
        explainer = Explainer(traces, now)
        operations = [operation] if operation else explainer.select(trace)
        explanations = [explainer.explain(each) for each in operations[:MAX_EXPLANATIONS]]
        tree = render(traces.spans(trace.summary.trace_id))
    write_result(args.out, report_page(trace, tree, explanations, _versions(), now))
    return OK


def _versions() -> dict[str, str]:
    """Return the versions of ckpt_observe and of the checkpoint libraries that are installed here."""
    distributions = packages_distributions()
    modules = {library.module.partition(".")[0] for library in LIBRARIES.values()} - {"ckpt_observe"}
    installed = sorted({name for module in modules for name in distributions.get(module, ())})
    return {"ckpt_observe": __version__, **{name: version(name) for name in installed}}
