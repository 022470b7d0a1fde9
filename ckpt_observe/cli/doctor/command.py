"""`ckpt-observe doctor`: check settings, directories, journals, servers and patches.

Tests every directory and server, then cleans up: test files and directories are removed, and servers receive a request without spans.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace, _SubParsersAction
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from ckpt_observe import config
from ckpt_observe.cli.doctor import PROBLEM, Diagnosis, prometheus, servers, setup, state_directory
from ckpt_observe.cli.output import OK, Column, command_description, print_json, print_table, until_pipe_closes
from ckpt_observe.config import Settings
from ckpt_observe.errors import ConfigError

PROBLEMS: Final = 3
_COLUMNS: Final = (Column("STATE"), Column("SUBJECT"), Column("DETAIL"))

CHECKS: Final[dict[str, Callable[[Settings], Iterable[Diagnosis]]]] = {
    "settings": setup.check_settings,
    "state directory": state_directory.check_directories,
    "journals": state_directory.check_journals,
    "recorded": state_directory.check_records,
    "servers": servers.check_servers,
    "metrics": prometheus.check_metrics,
    "patches": setup.check_patches,
    "other libraries": setup.check_other_libraries,
}
"""In the order of the report."""


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "doctor",
        help="check settings, directories, journals, servers and patches",
        description=command_description(__doc__),
        epilog="States: ok, note (for information), problem. Exit codes: 0 no problem, 2 wrong usage, 3 problems found.",
    )
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")
    parser.add_argument("--json", action="store_true", help="print each finding as a JSON object on its own line")
    parser.set_defaults(run=run)


@until_pipe_closes
def run(args: Namespace) -> int:
    """Print all findings and return the exit code."""
    findings = list(check_everything(args.dir))
    if args.json:
        for finding in findings:
            print_json(msgspec.json.encode(finding._asdict()).decode())
    else:
        print_table(_COLUMNS, findings)
    return PROBLEMS if any(finding.state == PROBLEM for finding in findings) else OK


def check_everything(directory: str | None = None) -> Iterator[Diagnosis]:
    """Run all checks. After invalid settings, and on Windows, where nothing is recorded, the checks of `CHECKS` are skipped."""
    yield from setup.check_versions()
    yield from setup.check_platform()
    yield from setup.check_variable_names(os.environ)
    try:
        settings = config.read(dir=directory)
    except ConfigError as error:
        yield Diagnosis(PROBLEM, "settings", str(error))
        return
    if sys.platform == "win32":
        return
    with state_directory.without_new_directories(settings):
        for subject, check in CHECKS.items():
            try:
                yield from check(settings)
            except Exception as error:  # a check that fails must not hide the results of the others
                yield Diagnosis(PROBLEM, subject, f"the check failed: {type(error).__name__}: {error}")
