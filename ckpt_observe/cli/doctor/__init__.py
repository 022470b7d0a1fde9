"""`ckpt-observe doctor`: effective settings and where each came from, each place and server tried for real, what waits, what is patched.

Nothing is left of the trying: files are removed again, and servers get a request without spans.
"""

from __future__ import annotations

import os
from argparse import Namespace, _SubParsersAction
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from ckpt_observe import config
from ckpt_observe.cli.doctor import disk, journals, prometheus, servers, settings, software
from ckpt_observe.cli.doctor.finding import PROBLEM, Finding
from ckpt_observe.cli.output import OK, Column, about, print_table, until_pipe_closes
from ckpt_observe.config import Settings
from ckpt_observe.errors import ConfigError

PROBLEMS: Final = 3
_COLUMNS: Final = (Column("STATE"), Column("WHAT"), Column("DETAIL"))

CHECKS: Final[dict[str, Callable[[Settings], Iterable[Finding]]]] = {
    "settings": settings.effective,
    "state directory": disk.places,
    "journals": journals.backlog,
    "servers": servers.tried,
    "metrics": prometheus.outlets,
    "patches": software.patches,
}
"""In the order of the report."""


def register(subparsers: _SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check settings, directories, journals, servers and patches",
        description=about(__doc__),
        epilog="States: ok, note (worth knowing), problem. Exit codes: 0 no problem, 2 wrong usage, 3 problems found.",
    )
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")
    parser.add_argument("--json", action="store_true", help="print the findings, one JSON object a line")
    parser.set_defaults(run=run)


@until_pipe_closes
def run(args: Namespace) -> int:
    found = list(findings(args.dir))
    if args.json:
        for finding in found:
            print(msgspec.json.encode(finding._asdict()).decode())
    else:
        print_table(_COLUMNS, found)
    return PROBLEMS if any(finding.state == PROBLEM for finding in found) else OK


def findings(directory: str | None = None) -> Iterator[Finding]:
    yield from software.versions()
    yield from settings.misspelt(os.environ)
    try:
        effective = config.read(dir=directory)
    except ConfigError as error:
        yield Finding(PROBLEM, "settings", str(error))
        return
    for subject, check in CHECKS.items():
        try:
            yield from check(effective)
        except Exception as error:  # what one check did not expect does not hide what the others find
            yield Finding(PROBLEM, subject, f"could not be checked: {type(error).__name__}: {error}")
