"""Where records are kept if the state directory cannot be used: in a temporary directory, or else in shared memory.

If neither can be used, they are delivered from memory (`delivery/memory_delivery.py`).

A container may have a read-only root, and a user a home directory that is not writable. Servers must get their spans all the same.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from ckpt_observe.errors import JournalError
from ckpt_observe.journal import locations
from ckpt_observe.journal.directory import JOURNALS, UNFINISHED
from ckpt_observe.journal.locations import private_directory
from ckpt_observe.support.files import private_temporary_path
from ckpt_observe.support.host_exceptions import raise_host_exception


def fallback_directories() -> tuple[Path, Path]:
    """Return the state directories that are tried if the configured one cannot be used.

    They are in the user's temporary directory and in shared memory, which a container with a read-only root still has.
    """
    return private_temporary_path(), locations.SHARED_MEMORY / f"ckpt_observe-state-{os.geteuid()}"


def usable_directory(configured: Path) -> tuple[Path, JournalError | None]:
    """Return a state directory in which a journal can be created, and why it is not the configured one (None if it is).

    Raise JournalError, for the configured directory, if none can be used.
    """
    reason: JournalError | None = None
    for directory in (configured, *fallback_directories()):
        try:
            check_writable(directory)
        except JournalError as error:
            reason = reason or error
        else:
            return directory, reason
    raise reason or JournalError(f"{configured}: cannot be used")


def check_writable(state: Path) -> None:
    """Check that a journal can be created in a state directory, which is created too. Raise JournalError if not."""
    probe = private_directory(private_directory(state) / JOURNALS) / f"probe-{os.getpid()}-{time.time_ns():x}{UNFINISHED}"
    try:
        probe.mkdir(0o700)  # a directory, because a journal is one, too; what a crash leaves behind is removed with unfinished journals
        probe.rmdir()
    except OSError as error:
        raise_host_exception(error)
        remedy = "set CKPT_OBSERVE_DIR to a directory that you can write to"
        raise JournalError(f"{state}: cannot be written ({error.strerror}); {remedy}") from error
