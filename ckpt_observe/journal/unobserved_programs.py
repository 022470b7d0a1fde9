"""Remembers the programs that recorded nothing although they imported a checkpoint library, for `ckpt-observe traces` and `doctor`.

One small file for each service name, in the state directory. It is removed when the program records something.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

import msgspec

from ckpt_observe.errors import CkptObserveError
from ckpt_observe.journal.locations import private_directory
from ckpt_observe.support import files
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception

DIRECTORY: Final = "unobserved"
_MAX_FILES: Final = 20
_SUFFIX: Final = ".json"


class UnobservedProgram(msgspec.Struct, frozen=True):
    """A program that ended without a recorded operation, and why."""

    service: str
    ended_unix_nano: int
    reasons: list[str]

    def describe(self) -> str:
        return f"{self.service} has recorded no operation: {'; '.join(self.reasons)}"


def remember(state: Path, service: str, reasons: list[str]) -> None:
    """Store that the program recorded nothing. If that fails, only the log line of the program tells it."""
    content = msgspec.json.encode(UnobservedProgram(service, time.time_ns(), reasons))
    with ignore_errors(OSError, CkptObserveError):
        private_directory(state)
        directory = private_directory(state / DIRECTORY)
        path = str(directory / _file_name(service))
        files.replace_file(path, content, sync=False, temporary=f"{path}.{os.getpid()}.new")
        for old_file in sorted(directory.glob(f"*{_SUFFIX}"), key=os.path.getmtime, reverse=True)[_MAX_FILES:]:
            old_file.unlink(missing_ok=True)


def forget(state: Path, service: str) -> None:
    """Remove the file of a program that is observed now."""
    with ignore_errors(OSError):
        os.unlink(state / DIRECTORY / _file_name(service))


def read(state: Path) -> list[UnobservedProgram]:
    """Return the programs that recorded nothing in their last run, the newest first. Damaged files are skipped."""
    programs = []
    for path in (state / DIRECTORY).glob(f"*{_SUFFIX}"):
        try:
            programs.append(msgspec.json.decode(path.read_bytes(), type=UnobservedProgram))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise_host_exception(error)
    return sorted(programs, key=lambda program: program.ended_unix_nano, reverse=True)


def _file_name(service: str) -> str:
    return service.encode("utf-8", "replace").hex()[:200] + _SUFFIX  # any character is allowed in a service name
