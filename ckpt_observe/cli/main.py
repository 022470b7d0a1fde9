"""`ckpt-observe`: parses arguments and runs a command. Command modules are imported on demand; importing all of them takes 0.4 s."""

from __future__ import annotations

import sys
import textwrap
from argparse import Action, ArgumentParser, HelpFormatter, _SubParsersAction
from collections.abc import Sequence
from importlib import import_module
from typing import Final

from ckpt_observe import __version__
from ckpt_observe.cli.commands import CommandParser
from ckpt_observe.cli.exit_codes import INTERRUPTED, USAGE, code_of, describe_codes
from ckpt_observe.cli.output import accept_every_character, print_error
from ckpt_observe.errors import CkptObserveError
from ckpt_observe.support.suggestions import suggest

GROUPS: Final = {
    "Start": {"demo": "demo", "run": "run", "doctor": "doctor.command"},
    "See what happened": {
        "traces": "traces",
        "why": "why",
        "tail": "tail",
        "top": "top",
        "timeline": "timeline",
        "report": "report",
        "ui": "ui",
    },
    "Look into checkpoints": {
        "list": "store_listing",
        "show": "contents_view",
        "diff": "contents_view",
        "log": "key_history",
        "extract": "key_history",
    },
    "Take care of checkpoints": {
        "verify": "upkeep",
        "prune": "upkeep",
        "drill": "restore_drill",
        "stats": "store_statistics",
        "advise": "advise",
    },
    "Deliver and remove records": {"deliver": "deliver", "daemon": "daemon", "clean": "clean"},
    "Generate files": {
        "dashboards": "generated_files",
        "rules": "generated_files",
        "libraries": "generated_files",
        "reference": "generated_files",
        "semconv": "generated_files",
        "completion": "completion",
    },
}
"""The commands as the help lists them, with the module of each."""
COMMANDS: Final = {name: module for group in GROUPS.values() for name, module in group.items()}


class _GroupedHelp(HelpFormatter):
    """Lists the commands by group: a newcomer finds one of thirty by what it is for."""

    def _format_action(self, action: Action) -> str:
        if not isinstance(action, _SubParsersAction):
            return super()._format_action(action)
        commands = {command.dest: command for command in action._choices_actions}
        parts = []
        for title, group in GROUPS.items():
            lines = [super(_GroupedHelp, self)._format_action(commands[name]) for name in group if name in commands]
            parts.append(f"  {title}:\n{textwrap.indent(''.join(lines), '  ')}\n")
        return "".join(parts)


def create_parser(arguments: Sequence[str]) -> ArgumentParser:
    """Return a parser for the command in the arguments, or for all commands if they contain none."""
    parser = ArgumentParser(
        prog="ckpt-observe",
        description="Records every checkpoint operation of a program as a trace that survives a crash of the process.",
        epilog=describe_codes(),
        formatter_class=_GroupedHelp,
    )
    parser.add_argument("--version", action="version", version=f"ckpt-observe {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    if command and command not in COMMANDS:
        parser.error(f"unknown command {command!r}{suggest(command, COMMANDS)}")
    modules = [COMMANDS[command]] if command else () if "--version" in arguments else dict.fromkeys(COMMANDS.values())
    for module in modules:
        import_module(f"ckpt_observe.cli.{module}").register(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments` (None: those of this process) and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    accept_every_character()
    try:
        if not arguments:
            create_parser(()).print_help(sys.stderr)
            return USAGE
        args = create_parser(arguments).parse_args(arguments)
        code: int = args.run(args)
    except CkptObserveError as error:
        print_error(error)
        return code_of(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    return code
