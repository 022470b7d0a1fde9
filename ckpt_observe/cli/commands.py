"""Adds commands to the parser, all in the same way."""

from __future__ import annotations

from argparse import PARSER, REMAINDER, Action, ArgumentError, ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from ckpt_observe.cli.exit_codes import describe_codes
from ckpt_observe.cli.output import until_output_ends
from ckpt_observe.support.formatting import printable
from ckpt_observe.support.suggestions import suggest


class CommandParser(ArgumentParser):
    """Accepts options between the arguments, as in `show STORE --json TASK`, which argparse of Python 3.11 refuses by default.

    An unknown option is an error of the command, with its usage. By default, argparse shows the usage of the whole program. The
    message about a wrong option or choice suggests a similar one.
    """

    _is_intermixing = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        if self._is_intermixing:
            return super().parse_known_args(args, namespace)
        self._is_intermixing = True
        try:
            parse = self.parse_known_intermixed_args if self._can_intermix() else super().parse_known_args
            namespace, unknown = parse(args, namespace)
        finally:
            self._is_intermixing = False
        if unknown:
            hint = suggest(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))  # it may quote the name of a file

    def _check_value(self, action: Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except ArgumentError as error:
            error.message += suggest(str(value), map(str, action.choices or ()))
            raise

    def _can_intermix(self) -> bool:
        grouped = {action for group in self._mutually_exclusive_groups for action in group._group_actions}
        return not any(action.nargs in (PARSER, REMAINDER) or action in grouped for action in self._get_positional_actions())


def add_command(
    subparsers: _SubParsersAction[Any],
    name: str,
    run: Callable[[Namespace], int],
    *,
    description: str,
    codes: Iterable[int],
    notes: str = "",
    json: str = "",
) -> ArgumentParser:
    """Add a command and return its parser.

    `description` is the sentence in its help. `json` says what a line of `--json` is, such as
    `checkpoint`; an empty string means that the command has no such option. `codes` are its exit codes, and `notes` come before them.
    """
    epilog = f"{notes} {describe_codes(*codes)}".strip()
    parser: ArgumentParser = subparsers.add_parser(name, description=description, epilog=epilog)
    if json:
        parser.add_argument("--json", action="store_true", help=f"print each {json} as a JSON object on its own line")
    parser.set_defaults(run=until_output_ends(run))
    return parser


def command_description(docstring: str | None) -> str:
    """Return the docstring of a command's module as its help text, without the name of the command."""
    text = (docstring or "").partition(": ")[2]
    return text[:1].upper() + text[1:]
