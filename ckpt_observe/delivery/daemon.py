"""The daemon of a state directory: one at a time, by a lock that says who has it; and how a host sees whether it is delivered."""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Final

from ckpt_observe.delivery.once import Once
from ckpt_observe.errors import DaemonRunningError
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.locations import private_directory
from ckpt_observe.support.locks import FileLock, is_locked

LOCK: Final = "daemon.lock"
LOOK_EVERY: Final = 2.0
MISSED_AFTER: Final = 10.0
"""Seconds without a daemon after which it is said: one that is restarted is away for less."""
_TRIES: Final = 20
"""Somebody who only looks whether there is a daemon holds the lock for a moment."""


def hold(state: Path) -> FileLock:
    """Be the daemon of a state directory, until the lock is given back. DaemonRunningError: somebody else is."""
    path = private_directory(state) / LOCK
    lock = take(str(path))
    if lock is None:
        who = path.read_text(encoding="utf-8", errors="replace").strip()
        raise DaemonRunningError(f"{state}: has a daemon already ({who or 'it does not say who'}); stop it, or give this one another --dir")
    lock.describe_holder(f"pid {os.getpid()} on {socket.gethostname()} since {datetime.now().astimezone():%Y-%m-%d %H:%M:%S%z}")
    return lock


def take(path: str) -> FileLock | None:
    """A lock that is held for long or not at all."""
    for _ in range(_TRIES):
        lock = FileLock.try_acquire(path)
        if lock is not None:
            return lock
        time.sleep(0.02)
    return None


def present(state: Path) -> bool:
    """Whether there is a daemon."""
    try:
        return is_locked(str(state / LOCK))
    except OSError:
        return False


class Daemon:
    """The daemon, seen from a host: somebody else starts it, so all there is to do is to say that it is missing. Used by one thread."""

    def __init__(self, state: Path, journal: Journal) -> None:
        self._state, self._journal = state, journal
        self._looked = 0.0
        self._missing_since: float | None = None
        self._once = Once()

    def look(self) -> bool:
        """Say once that nobody delivers. Always True: the records wait on disk."""
        now = time.monotonic()
        if now - self._looked >= LOOK_EVERY:
            self._looked = now
            if self._journal.has_deliverer():
                self._missing_since = None
            elif self._missing_since is None:
                self._missing_since = now
            elif now - self._missing_since >= MISSED_AFTER:
                self._once.say("daemon", f"no daemon delivers {self._state}; records wait there until `ckpt-observe daemon` runs")
        return True

    def close(self, _timeout: float) -> None:
        """There is nothing to give back."""
