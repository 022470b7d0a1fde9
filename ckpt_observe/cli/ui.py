"""`ckpt-observe ui`: shows traces, checkpoints and running operations in the browser, live. Nothing is sent to another machine."""

from __future__ import annotations

import socket
import time
from argparse import Namespace, _SubParsersAction
from contextlib import suppress
from typing import Any, Final

from ckpt_observe import config, wiring
from ckpt_observe.cli.commands import add_command, command_description
from ckpt_observe.cli.exit_codes import ERROR, OK, USAGE
from ckpt_observe.cli.output import print_error
from ckpt_observe.config import Settings
from ckpt_observe.errors import MissingExtraError
from ckpt_observe.query import read_waiting

_ADOPTION_SECONDS: Final = 1.0
"""Time between two looks for dead processes."""


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = add_command(
        subparsers,
        "ui",
        run,
        description=command_description(__doc__),
        notes="Needs the extra `ui`. Ends with Ctrl-C.",
        codes=(OK, ERROR, USAGE),
    )
    parser.add_argument("--port", type=int, default=0, metavar="N", help="port on loopback (default: any free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address, and do not open it")
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")


def run(args: Namespace) -> int:
    """Serve until Ctrl-C."""
    return serve(config.read(dir=args.dir, exporters="local"), port=args.port, opens_browser=not args.no_browser)


def serve(settings: Settings, *, port: int = 0, opens_browser: bool = True) -> int:
    """Serve the viewer of a state directory until Ctrl-C. Return the exit code."""
    try:
        from ckpt_observe.viewer import server  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError("the viewer", "ui") from error
    try:
        listener = socket.create_server(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        print_error(f"cannot listen on 127.0.0.1:{port} ({error}); choose another port with --port, or none for any free one")
        return ERROR
    with listener, suppress(KeyboardInterrupt):  # uvicorn ends in order, and then raises it again
        server.serve(listener, settings.dir, adopt=Adopter(settings), opens_browser=opens_browser)
    return OK


class Adopter:
    """Delivers the records of dead processes, so that an operation that was killed is shown as interrupted."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._next = 0.0

    def __call__(self) -> None:
        """Look for dead processes, unless that was done a moment ago."""
        if time.monotonic() >= self._next and self._settings.dir.exists():
            if not all(journal.is_alive for journal in read_waiting(self._settings.dir)):
                wiring.deliver_dead(self._settings)
            self._next = time.monotonic() + _ADOPTION_SECONDS
