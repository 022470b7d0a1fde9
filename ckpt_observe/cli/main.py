"""`ckpt-observe`: parser and dispatch only; each command has a module of its own, imported when it is asked for: all of them take 0.4 s."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from ckpt_observe import __version__
from ckpt_observe.cli.output import ERROR, USAGE, complain
from ckpt_observe.errors import CkptObserveError, ConfigError

COMMANDS: Final = ("demo", "run", "daemon", "traces", "doctor", "dashboards", "rules", "semconv")


def parser(arguments: Sequence[str]) -> ArgumentParser:
    """For the command that these arguments name; for all of them where they name none."""
    made = ArgumentParser(
        prog="ckpt-observe",
        description="Every checkpoint operation of a program as a trace that survives the death of the process.",
        epilog="Exit codes: 0 done, 1 it failed, 2 wrong usage or setting, 3 problems found, 4 not found.",
    )
    made.add_argument("--version", action="version", version=f"ckpt-observe {__version__}")
    commands = made.add_subparsers(metavar="COMMAND", required=True)
    named = next((each for each in arguments if not each.startswith("-")), "")
    for command in [named] if named in COMMANDS else COMMANDS:
        import_module(f"ckpt_observe.cli.{command}").register(commands)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    args = parser(given).parse_args(given)
    try:
        code: int = args.run(args)
    except CkptObserveError as error:
        complain(error)
        return USAGE if isinstance(error, ConfigError) else ERROR
    except KeyboardInterrupt:
        return 130  # as shells say it: 128 + SIGINT
    return code


if __name__ == "__main__":
    sys.exit(main())
