"""`ckpt-observe doctor`: checks settings, directories, journals, servers and patches.

Tests every directory and server, then cleans up: test files and directories are removed, and servers receive a request without spans.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace, _SubParsersAction
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from msgspec.structs import astuple

from ckpt_observe import config
from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.doctor import NOTE, PROBLEM, Diagnosis, prometheus, servers, setup, state_directory
from ckpt_observe.cli.exit_codes import OK, PROBLEMS, USAGE
from ckpt_observe.cli.json_output import print_structs
from ckpt_observe.cli.output import Column, print_table
from ckpt_observe.config import Settings
from ckpt_observe.errors import ConfigError

JSON: Final = {"doctor": Diagnosis}
_STYLES: Final = {PROBLEM: "bold red", NOTE: "yellow"}
_COLUMNS: Final = (Column("STATE", style=lambda state: _STYLES.get(state, "green")), Column("SUBJECT"), Column("DETAIL"))

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
    parser = add_command(
        subparsers,
        "doctor",
        run,
        description=command_description(__doc__),
        notes="States: ok, note (for information), problem.",
        codes=(OK, USAGE, PROBLEMS),
        json="finding",
    )
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")


def run(args: Namespace) -> int:
    """Print all findings and return the exit code."""
    findings = list(check_everything(args.dir))
    if args.json:
        print_structs(findings)
    else:
        print_table(_COLUMNS, map(astuple, findings))
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
