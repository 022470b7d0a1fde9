"""`ckpt-observe run -- CMD`: runs an unchanged program with its checkpoint operations recorded.

A directory with our `sitecustomize` is put first on PYTHONPATH, so every Python process that the program starts imports
`ckpt_observe.auto`. The program replaces this process (exec), so signals, exit code and process ID are those of the program. When it
exits, it prints to standard error how many operations were recorded, and which checkpoint libraries are not observed. The options
override environment variables and arguments of observe() in the program.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from argparse import REMAINDER, Namespace, _SubParsersAction
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from ckpt_observe import config, environment
from ckpt_observe.cli.commands import command_description
from ckpt_observe.cli.exit_codes import USAGE
from ckpt_observe.cli.output import print_error
from ckpt_observe.errors import ConfigError
from ckpt_observe.exit_report import take_child_count

NOT_STARTED, NO_SUCH_COMMAND = 126, 127  # as in a shell
_VARIABLES: Final = {"exporters": environment.EXPORTERS, "dir": environment.DIR, "service": environment.SERVICE_NAME}
AUTOLOAD: Final = Path(__file__).parent / "autoload"


def register(subparsers: _SubParsersAction[Any]) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "run",
        usage="ckpt-observe run [-h] [--exporters LIST] [--service NAME] [--dir DIR] -- CMD",
        description=command_description(__doc__),
        epilog="Exit codes: that of the program; or, if it did not start, 2 wrong usage, 126 permission denied, 127 not found.",
    )
    parser.add_argument(
        "--exporters", metavar="LIST", help="exporters, such as otlp,local or +prometheus (default $CKPT_OBSERVE_EXPORTERS)"
    )
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
    python_path = os.pathsep.join(filter(None, (str(AUTOLOAD), os.environ.get("PYTHONPATH"))))
    environ = {**os.environ, "PYTHONPATH": python_path, environment.RUN_PID: str(os.getpid())}
    options = {name: value for name in ("exporters", "dir", "service") if (value := getattr(args, name))}
    if options:
        # Report a wrong argument before the program starts. A wrong variable never keeps a program from running: it logs the error itself.
        settings = config.read(warns=False, **options)
        variables = {"exporters": args.exporters, "dir": str(settings.dir), "service": settings.service}
        environ |= {_VARIABLES[name]: variables[name] for name in options}
        environ[environment.RUN_OPTIONS] = ",".join(options)
    _warn_if_unrecorded(command, environ)
    sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environ)  # noqa: S606 - the command is the user's own
    except OSError as error:
        print_error(f"{command[0]}: {error.strerror}{_script_hint(command)}")
        return NOT_STARTED if isinstance(error, PermissionError) else NO_SUCH_COMMAND


def _script_hint(command: Sequence[str]) -> str:
    """Return the right command if the program is a script of Python without its interpreter, as in `run train.py`."""
    if not (command[0].endswith(".py") and os.path.isfile(command[0])):
        return ""
    return f"; to run a script, name its interpreter: ckpt-observe run -- python {shlex.join(command)}"


def _warn_if_unrecorded(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Say that nothing will be recorded, if a setting turns recording off or the program is a Python that does not import us."""
    with suppress(ConfigError):  # the program logs it
        settings = config.read(environ, lenient=True, warns=False)
        take_child_count(settings.dir)  # of an earlier program with this process ID that was killed
        if not settings.enabled or not settings.exporters:
            variable = settings.origin["exporters" if settings.enabled else "enabled"]
            print_error(f"nothing is recorded, because {variable} turns recording off")
    if option := _isolating_option(command):
        print_error(
            f"nothing is recorded, because Python's option {option} turns sitecustomize off; import ckpt_observe.auto in the program"
        )


def _isolating_option(command: Sequence[str]) -> str | None:
    """Return the option of a Python command that keeps it from importing our `sitecustomize`: -I, -E, -S, also among others as in -IB."""
    if not re.match(r"(python|pypy)[0-9.]*$", os.path.basename(command[0])):
        return None
    options = takewhile(lambda argument: re.match(r"-[^-cm]", argument), command[1:])
    return next((option for option in options if not option.startswith(("-W", "-X")) and set(option) & set("IES")), None)
