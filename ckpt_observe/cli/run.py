"""`ckpt-observe run -- CMD`: runs an unchanged program with its checkpoint operations recorded.

A directory with our `sitecustomize` is put first on PYTHONPATH, so every Python process that the program starts imports
`ckpt_observe.auto`. The program replaces this process (exec), so signals, exit code and process ID are those of the program.
"""

from __future__ import annotations

import os
import sys
from argparse import REMAINDER, Namespace, _SubParsersAction
from pathlib import Path
from typing import Any, Final

from ckpt_observe import config, environment
from ckpt_observe.cli.output import USAGE, command_description, print_error

NOT_STARTED, NO_SUCH_COMMAND = 126, 127  # as in a shell
AUTOLOAD: Final = Path(__file__).parent / "autoload"


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "run",
        usage="ckpt-observe run [-h] [--exporters LIST] [--service NAME] [--dir DIR] -- CMD",
        help="run a program and record its checkpoint operations",
        description=command_description(__doc__),
        epilog="Exit codes: that of the program; or, if it did not start, 2 wrong usage, 126 permission denied, 127 not found.",
    )
    parser.add_argument("--exporters", metavar="LIST", help="comma-separated exporters (default $CKPT_OBSERVE_EXPORTERS)")
    parser.add_argument("--service", metavar="NAME", help="service name (default $OTEL_SERVICE_NAME, or the name of the program)")
    parser.add_argument("--dir", metavar="DIR", help="state directory (default $CKPT_OBSERVE_DIR)")
    parser.add_argument("command", nargs=REMAINDER, metavar="-- CMD", help="the program and its arguments")
    parser.set_defaults(run=run)


def run(args: Namespace) -> int:
    """Replace this process with the program. Return an exit code only if that fails."""
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        print_error("no program to run; for example: ckpt-observe run -- python train.py")
        return USAGE
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(AUTOLOAD), os.environ.get("PYTHONPATH"))))}
    if args.exporters or args.dir or args.service:
        # Report a wrong argument before the program starts. A wrong variable never keeps a program from running: it logs the error itself.
        settings = config.read(exporters=args.exporters, service=args.service, dir=args.dir)
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
        print_error(f"{command[0]}: {error.strerror}")
        return NOT_STARTED if isinstance(error, PermissionError) else NO_SUCH_COMMAND
