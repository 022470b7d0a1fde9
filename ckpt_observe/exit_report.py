"""What an observed program says when it exits, so that it never records nothing in silence.

Under `ckpt-observe run`, a summary on standard error. In any other program at most one log line, if it recorded nothing although it has
imported a checkpoint library that is not observed. `ckpt-observe traces` and `doctor` repeat that later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ckpt_observe import environment
from ckpt_observe.config import Settings
from ckpt_observe.errors import JournalError
from ckpt_observe.instrument.coverage import Coverage
from ckpt_observe.journal import recording_children, unobserved_programs
from ckpt_observe.journal.fallback import fallback_directories, usable_directory
from ckpt_observe.support.host_exceptions import ignore_errors
from ckpt_observe.support.logs import warn

_NOTHING = "this process has recorded no checkpoint operation"
_NO_LIBRARY = (
    "no known checkpoint library was imported: mark your own saves and loads with ckpt_observe.checkpoint(), "
    "or see which libraries are observed with: ckpt-observe doctor"
)


def is_run_by_command() -> bool:
    """Return whether this is the program of `ckpt-observe run`, and not one of its child processes."""
    return os.environ.get(environment.RUN_PID) == str(os.getpid())


def report_exit(settings: Settings, recorded: int, libraries: Sequence[Coverage]) -> None:
    """Say how many operations and tasks were recorded, which libraries are imported, and what to do about those that are not observed."""
    problems = [str(library) for library in libraries if library.is_problem]
    children = take_child_count(settings.dir) if is_run_by_command() else 0
    if recorded:
        unobserved_programs.forget(settings.dir, settings.service)
    elif problems and not children:
        unobserved_programs.remember(settings.dir, settings.service, problems)
    if is_run_by_command():
        _print("\n".join(f"ckpt-observe: {line}" for line in _summary(settings, recorded, children, libraries)))
    elif not recorded and (news := [str(library) for library in libraries if library.is_problem and not library.is_logged]):
        warn("No checkpoint operation was recorded. %s.", ". ".join(news))


def take_child_count(state: Path) -> int:
    """Return how many children of this process recorded something, and start from zero. They may have used other directories."""
    return sum(recording_children.take_count(directory, os.getpid()) for directory in (state, *fallback_directories()))


def _summary(settings: Settings, recorded: int, children: int, libraries: Sequence[Coverage]) -> list[str]:
    sampling = settings.sampler.note(is_counted=settings.counts_unsampled, exports_failures=settings.unsampled_failures)
    if recorded or children:
        by_children = f"; child processes that recorded some: {children}" if children else ""
        observed = [f"operations and tasks recorded by this process: {recorded}{by_children}; {_where_to_look(settings)}"]
    elif sampling:  # libraries may have made some that are not recorded
        observed = [_NOTHING]
    else:
        observed = [_NOTHING] + [f"{library}, but has made none" for library in libraries if not library.is_problem]
    if sampling:
        observed.append(sampling)
    problems = [str(library) for library in libraries if library.is_problem]
    return observed + problems + ([] if recorded or children or libraries else [_NO_LIBRARY])


def _where_to_look(settings: Settings) -> str:
    if "local" not in settings.exporters:
        return f"they are sent to: {', '.join(settings.exporters)}"
    return f"show the newest trace with: ckpt-observe traces --last{directory_option(settings)}"


def directory_option(settings: Settings) -> str:
    """Return the option with which a command finds the records of this process; empty if it finds them without one."""
    directory = settings.dir
    with ignore_errors(JournalError):  # no directory can be used: there is nothing to show
        directory, _ = usable_directory(settings.dir)
    is_default = directory == settings.dir and settings.origin.get("dir", "").startswith("default")
    if is_default:
        return ""
    from shlex import quote  # noqa: PLC0415 - rarely needed

    return f" --dir {quote(str(directory))}"


def _print(text: str) -> None:
    stream = sys.stderr
    if stream is not None:
        with ignore_errors(OSError, ValueError):  # the program has closed it
            encoding = stream.encoding or "utf-8"
            print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
