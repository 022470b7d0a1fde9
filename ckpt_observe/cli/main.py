"""`ckpt-observe`: parses arguments and runs a command. The module of a command is imported on demand."""

from __future__ import annotations

import sys
import textwrap
from argparse import Action, ArgumentParser, HelpFormatter, _SubParsersAction
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from ckpt_observe import __version__
from ckpt_observe.cli.commands import CommandParser
from ckpt_observe.cli.exit_codes import ERROR, INTERRUPTED, USAGE, code_of, describe_codes
from ckpt_observe.cli.output import prepare_streams, print_error
from ckpt_observe.errors import CkptObserveError
from ckpt_observe.support.suggestions import suggest

GROUPS: Final = {
    "Start": {
        "demo": ("demo", "run a small agent with a failure and a kill -9, and show its trace"),
        "run": ("run", "run a program and record its checkpoint operations"),
        "doctor": ("doctor.command", "check settings, directories, journals, servers and patches"),
    },
    "See what happened": {
        "traces": ("traces", "list the newest traces, or show one as a tree"),
        "why": ("why", "explain why an operation failed, was interrupted, is slow or hangs"),
        "tail": ("tail", "print operations as they start and finish"),
        "top": ("top", "show what each task is doing now, live"),
        "timeline": ("timeline", "draw operations over time, as text, SVG or HTML"),
        "report": ("report", "write a report about a trace as one HTML file, for a ticket"),
        "ui": ("ui", "show traces and running operations in the browser"),
    },
    "Look into checkpoints": {
        "list": ("store_listing", "list the checkpoints of a store"),
        "show": ("contents_view", "show what is in a checkpoint, file, directory, database or store"),
        "diff": ("contents_view", "compare two checkpoints of a task, or two files"),
        "log": ("key_history", "show the history of the keys of a task"),
        "extract": ("key_history", "print a checkpoint as Markdown, YAML or JSON"),
    },
    "Take care of checkpoints": {
        "verify": ("upkeep", "check that stored checkpoints can be loaded"),
        "prune": ("upkeep", "remove checkpoints that a policy does not keep, after a dry run"),
        "drill": ("restore_drill", "rehearse a restart: load and check the newest checkpoint of each task"),
        "stats": ("store_statistics", "show sizes, growth, largest keys and when the disk will be full"),
        "advise": ("advise", "recommend how often to save and what to change, from measurements"),
    },
    "Deliver and remove records": {
        "deliver": ("deliver", "send the records that wait on disk now"),
        "daemon": ("daemon", "deliver the records of all programs with CKPT_OBSERVE_DELIVERY=daemon"),
        "clean": ("clean", "remove recorded data; a dry run by default"),
    },
    "Generate files": {
        "dashboards": ("generated_files", "write the Grafana dashboards"),
        "rules": ("generated_files", "write alerts for Prometheus and Alertmanager, and their runbook"),
        "libraries": ("generated_files", "write the pages about the observed libraries"),
        "reference": ("generated_files", "write the reference of the commands and the schemas of their JSON"),
        "semconv": ("generated_files", "print the reference of span, attribute, metric and setting names"),
        "completion": ("completion", "print the completion script of a shell"),
    },
}
"""The commands as the help lists them, with the module and summary of each. The help imports no module: all of them take 0.4 s."""
COMMANDS: Final = {name: module for group in GROUPS.values() for name, (module, _) in group.items()}
SUMMARIES: Final = {name: summary for group in GROUPS.values() for name, (_, summary) in group.items()}


class _Commands(_SubParsersAction):  # type: ignore[type-arg] # it is not generic at run time
    """Lists each command with its summary."""

    def add_parser(self, name: str, **options: Any) -> Any:
        return super().add_parser(name, help=SUMMARIES[name], **options)


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
    """Return a parser for the command in the arguments, or one that knows only the names of commands if they contain none."""
    parser, subparsers = _create_parser()
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    if not command:
        for name in COMMANDS:
            subparsers.add_parser(name)
    elif command in COMMANDS:
        import_module(f"ckpt_observe.cli.{COMMANDS[command]}").register(subparsers)
    else:
        parser.error(f"unknown command {command!r}{suggest(command, COMMANDS)}")
    return parser


def create_complete_parser() -> ArgumentParser:
    """Return a parser for all commands."""
    parser, subparsers = _create_parser()
    for module in dict.fromkeys(COMMANDS.values()):
        import_module(f"ckpt_observe.cli.{module}").register(subparsers)
    return parser


def _create_parser() -> tuple[ArgumentParser, _SubParsersAction[CommandParser]]:
    parser = ArgumentParser(
        prog="ckpt-observe",
        description="Records every checkpoint operation of a program as a trace that survives a crash of the process.",
        epilog=describe_codes(),
        formatter_class=_GroupedHelp,
    )
    parser.add_argument("--version", action="version", version=f"ckpt-observe {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser, action=_Commands)
    return parser, subparsers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in `arguments` (None: those of this process) and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    prepare_streams()
    try:
        if not arguments:
            create_parser(()).print_help(sys.stderr)
            return USAGE
        args = create_parser(arguments).parse_args(arguments)
        code: int = args.run(args)
    except CkptObserveError as error:
        print_error(error)
        return code_of(error)
    except MemoryError:
        print_error("not enough memory; free some, or raise the limit of this process")
        return ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    return code
