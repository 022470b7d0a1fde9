"""`ckpt-observe`: parser and dispatch only; each command has a file of its own."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Sequence

from ckpt_observe import __version__
from ckpt_observe.cli import agent, dashboards, demo, doctor, rules, run, semconv, traces
from ckpt_observe.cli.output import ERROR, complain
from ckpt_observe.errors import CkptObserveError


def parser() -> ArgumentParser:
    made = ArgumentParser(
        prog="ckpt-observe",
        description="Every checkpoint operation of a program as a trace that survives the death of the process.",
        epilog="Exit codes: 0 done, 1 it failed, 2 wrong usage, 3 problems found, 4 not found.",
    )
    made.add_argument("--version", action="version", version=f"ckpt-observe {__version__}")
    commands = made.add_subparsers(metavar="COMMAND", required=True)
    for command in (demo, run, agent, traces, doctor, dashboards, rules, semconv):
        command.register(commands)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    args = parser().parse_args(arguments)
    try:
        code: int = args.run(args)
    except CkptObserveError as error:
        complain(error)
        return ERROR
    except KeyboardInterrupt:
        return 130  # as shells say it: 128 + SIGINT
    return code


if __name__ == "__main__":
    sys.exit(main())
