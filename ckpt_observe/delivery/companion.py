"""The companion of a state directory, as seen from a host program: checks that one runs, and starts one if not.

An intermediate process starts the companion, waits until it works, reports the result with its exit code and exits. So the companion is
not a child of the host program, leaves no zombie and outlives it. It inherits the environment, which holds the addresses and keys of its
exporters, but no descriptor and no terminal. A lock makes sure that there is only one for each set of exporters, however many processes
try to start one.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.locks import FileLock, is_locked
from ckpt_observe.support.logs import WarningLog

MODULE: Final = "ckpt_observe.cli.companion"
CHECK_INTERVAL: Final = 1.0
"""Seconds between two checks whether the companion still runs."""
START_TIMEOUT: Final = 60.0
"""Seconds that a start may take: it takes long on a loaded machine."""
MAX_ATTEMPTS: Final = 3
"""How many companions may die right after their start before we give up."""


def lock_path(state: Path, name: str) -> str:
    """Return the lock file of a companion. `name` identifies its exporters: processes with other exporters have another companion."""
    return str(state / f"companion-{name}.lock")


def _reap_later(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process on a thread. Otherwise it would stay a zombie as long as the host program lives."""
    try:
        threading.Thread(target=process.wait, name="ckpt-observe-await", daemon=True).start()
    except RuntimeError as error:  # the host program is exiting
        raise_host_exception(error)
        process.returncode = 0  # otherwise Python would warn that the process is still running


class Companion:
    """Keeps a companion running. `check` is called by one thread, `close` by any."""

    def __init__(self, state: Path, name: str, environ: Mapping[str, str]) -> None:
        self._path, self._environ = lock_path(state, name), environ
        self._process: subprocess.Popen[bytes] | None = None
        """The intermediate process, while we are starting a companion."""
        self._start_lock: FileLock | None = None
        """Held while we start a companion, so that only one of many host programs does."""
        self._start_time = self._last_check = 0.0
        self._attempts = 0
        self._warnings = WarningLog()
        self._lock = threading.Lock()
        self._is_closed = False

    def check(self) -> bool:
        """Start a companion if none is running. Return False, after a warning, if that is not possible."""
        with self._lock:
            return self._is_closed or self._check()

    def _check(self) -> bool:
        if self._process is not None:
            return self._check_start(self._process)
        now = time.monotonic()
        if now - self._last_check < CHECK_INTERVAL:
            return True
        self._last_check = now
        if self._is_running():
            self._attempts = 0
            return True
        return self._start(now)

    def close(self, timeout: float) -> None:
        """Wait for the intermediate process, if there is one. The companion itself goes on."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                try:
                    self._process.wait(timeout)
                except subprocess.TimeoutExpired:
                    _reap_later(self._process)
            self._end_start()

    def _is_running(self) -> bool:
        lock = FileLock.try_acquire(self._path)
        if lock is not None:
            lock.release()
        return lock is None

    def _start(self, now: float) -> bool:
        if self._attempts >= MAX_ATTEMPTS:
            return self._give_up(f"it exited {MAX_ATTEMPTS} times right after its start")
        program = sys.executable or ""
        if not Path(program).name.startswith(("python", "pypy")):  # an application that embeds Python would start itself again
            return self._give_up(f"'{program}' is not a Python interpreter")
        self._start_lock = FileLock.try_acquire(self._path + ".starting")
        if self._start_lock is None or self._is_running():  # another process is starting it, or has just done so
            self._end_start()
            return True
        self._attempts, self._start_time = self._attempts + 1, now
        nowhere = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                [program, "-P", "-m", MODULE], env=self._environ, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
            )
        except (OSError, ValueError) as error:
            raise_host_exception(error)
            self._end_start()
            return self._give_up(str(error))
        return True

    def _check_start(self, process: subprocess.Popen[bytes]) -> bool:
        code = process.poll()
        if code is None:
            in_time = time.monotonic() - self._start_time < START_TIMEOUT
            return in_time or self._give_up(f"it did not start within {START_TIMEOUT:.0f} s")
        self._end_start()
        return code == 0 or self._give_up(f"exit code {code}; see companion.log in the state directory")

    def _end_start(self) -> None:
        self._process = None
        if self._start_lock is not None:
            self._start_lock.release()
            self._start_lock = None

    def _give_up(self, reason: str) -> bool:
        self._warnings.warn_once("start", "Cannot start a companion (%s). Threads of this process deliver instead.", reason)
        return False


def running_companions(state: Path) -> list[str]:
    """Return the lock files of the companions that are running."""
    return [str(path) for path in sorted(state.glob("companion-*.lock")) if is_locked(str(path))]
