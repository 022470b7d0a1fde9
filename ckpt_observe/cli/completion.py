"""`ckpt-observe completion`: prints the script with which a shell completes commands, options and file names."""

from __future__ import annotations

from argparse import Namespace, _SubParsersAction
from typing import Any, Final

from ckpt_observe.cli import main
from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import OK, USAGE
from ckpt_observe.errors import MissingExtraError

SHELLS: Final = ("bash", "zsh", "fish")
_NOTES: Final = (
    "Install: bash: ckpt-observe completion bash > ~/.local/share/bash-completion/completions/ckpt-observe; "
    "zsh: ckpt-observe completion zsh > DIR/_ckpt-observe, where DIR is in $fpath; "
    "fish: ckpt-observe completion fish > ~/.config/fish/completions/ckpt-observe.fish."
)


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "completion",
        run,
        description=command_description(__doc__),
        notes=_NOTES,
        codes=(OK, USAGE),
    )
    parser.add_argument("shell", choices=SHELLS, help="your shell")


def run(args: Namespace) -> int:
    """Print the script."""
    try:
        import shtab  # noqa: PLC0415 (an extra)
    except ImportError:
        raise MissingExtraError("`ckpt-observe completion`", "completion") from None
    print(shtab.complete(main.create_complete_parser(), args.shell).rstrip())
    return OK
