"""The daemon of a state directory: the lock that makes it the only one, and how a host program notices that it is missing."""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Final

from ckpt_observe.errors import DaemonRunningError
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.locations import private_directory
from ckpt_observe.support import files
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.locks import FileLock, is_locked
from ckpt_observe.support.logs import WarningLog

LOCK: Final = "agent.lock"
"""The file keeps its former name, because a daemon of an earlier version may hold the lock."""
CHECK_INTERVAL: Final = 2.0
WARN_AFTER: Final = 10.0
"""Seconds without a daemon before we warn. A restart takes less."""
_HOLDER_SIZE: Final = 256
"""Bytes of the description of a holder that an error message shows."""
_LOCK_ATTEMPTS: Final = 20
"""Attempts to get the lock, 20 ms apart: a process that only checks whether there is a daemon holds it for a moment."""


def acquire_daemon_lock(state: Path) -> FileLock:
    """Become the daemon of a state directory until the lock is released. Raise DaemonRunningError if there is another one."""
    path = private_directory(state) / LOCK
    lock = acquire_lock(str(path))
    if lock is None:
        holder = files.read_file(str(path), _HOLDER_SIZE).decode(errors="replace").strip() or "unknown process"
        raise DaemonRunningError(f"{state} already has a daemon ({holder}); stop it, or choose another state directory with --dir")
    lock.describe_holder(f"pid {os.getpid()} on {socket.gethostname()} since {datetime.now().astimezone():%Y-%m-%d %H:%M:%S%z}")
    return lock


def acquire_lock(path: str) -> FileLock | None:
    """Acquire the lock of a daemon or companion. Return None if another process holds it for longer than a check takes."""
    for _ in range(_LOCK_ATTEMPTS):
        lock = FileLock.try_acquire(path)
        if lock is not None:
            return lock
        time.sleep(0.02)
    return None


def is_running(state: Path) -> bool:
    """Return whether the state directory has a daemon."""
    try:
        return is_locked(str(state / LOCK))
    except OSError as error:
        raise_host_exception(error)
        return False


class Daemon:
    """The daemon as seen from a host program, which does not start it and can only warn if it is missing. Used by one thread."""

    def __init__(self, state: Path, journal: Journal) -> None:
        self._state, self._journal = state, journal
        self._last_check = 0.0
        self._missing_since: float | None = None
        self._warnings = WarningLog()

    def check(self) -> bool:
        """Warn once if nobody delivers our journal for WARN_AFTER seconds. Return True in any case: the records wait on disk."""
        now = time.monotonic()
        if now - self._last_check >= CHECK_INTERVAL:
            self._last_check = now
            if self._journal.has_deliverer():
                self._missing_since = None
            elif self._missing_since is None:
                self._missing_since = now
            elif now - self._missing_since >= WARN_AFTER:
                self._warnings.warn_once(
                    "daemon",
                    "No daemon delivers the records of %s. They are kept on disk; start `ckpt-observe daemon`.",
                    self._state,
                )
        return True

    def close(self, _timeout: float) -> None:
        """Do nothing: there is nothing to release."""
