"""`ckpt-observe run -- CMD`: a program that was not changed, observed.

A directory with a `sitecustomize` of ours goes to the front of PYTHONPATH, so every Python that the command starts imports
`ckpt_observe.auto` first. The command takes our place (exec): its signals, exit code and process id are its own.
"""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, Namespace, _SubParsersAction
from pathlib import Path
from typing import Any, Final

from ckpt_observe import config, environment
from ckpt_observe.cli.output import USAGE, about, complain

NOT_STARTED, NO_SUCH_COMMAND = 126, 127  # as shells say it
AUTOLOAD: Final = Path(__file__).parent / "autoload"


def register(subparsers: _SubParsersAction[Any]) -> None:
    parser = subparsers.add_parser(
        "run",
        usage="ckpt-observe run [-h] [--exporters LIST] [--service NAME] [--dir DIR] -- CMD",
        help="run a program with every checkpoint operation observed",
        description=about(__doc__),
        epilog="Exit codes: the program's; if it was not started 2 no program given or wrong settings, 126 not allowed, 127 not found.",
    )
    parser.add_argument("--exporters", metavar="LIST", help="where spans go (default $CKPT_OBSERVE_EXPORTERS)")
    parser.add_argument("--service", metavar="NAME", help="name of the service (default $OTEL_SERVICE_NAME, else the program's)")
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")
    parser.add_argument("command", nargs=REMAINDER, metavar="-- CMD", help="the program and its arguments")
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    """Becomes the command; returns only if it cannot."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        complain("run what? For example: ckpt-observe run -- python train.py")
        return USAGE
    settings = config.read(exporters=args.exporters, service=args.service, dir=args.dir)  # a wrong setting is told before anything runs
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(AUTOLOAD), os.environ.get("PYTHONPATH"))))}
    if args.exporters:
        environ[environment.EXPORTERS] = ",".join(settings.exporters) or "none"
    if args.dir:
        environ[environment.DIR] = str(settings.dir)
    if args.service:
        environ[environment.SERVICE_NAME] = settings.service
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environ)  # noqa: S606 - the command is the user's own
    except OSError as error:
        complain(f"{command[0]}: {error.strerror}")
        return NOT_STARTED if isinstance(error, PermissionError) else NO_SUCH_COMMAND
