"""Counts the child processes of `ckpt-observe run` that record something, so that a launcher does not claim that nothing was recorded.

The program has a small file in the state directory. Each child adds a byte to it when it creates its journal, so it also counts if it is
killed later.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from ckpt_observe.errors import CkptObserveError
from ckpt_observe.journal.locations import private_directory
from ckpt_observe.support.host_exceptions import ignore_errors

DIRECTORY: Final = "run-children"
_MAX_FILES: Final = 20
"""Programs that are killed leave their files behind."""


def add_child(state: Path, program_pid: int) -> None:
    """Count this process as a child of the program that records. If that fails, only the summary of the program is less complete."""
    with ignore_errors(OSError, CkptObserveError):
        directory = private_directory(state / DIRECTORY)
        with open(directory / str(program_pid), "ab") as file:
            file.write(b".")
        for old_file in sorted(directory.iterdir(), key=os.path.getmtime, reverse=True)[_MAX_FILES:]:
            old_file.unlink(missing_ok=True)


def take_count(state: Path, program_pid: int) -> int:
    """Return how many children of the program recorded something, and start from zero."""
    path = state / DIRECTORY / str(program_pid)
    with ignore_errors(OSError):
        count = path.stat().st_size
        path.unlink()
        return count
    return 0
