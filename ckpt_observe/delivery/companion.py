"""The companion of a state directory, seen from a host: there, or started by whoever finds that it is not.

It is started by a process between, which waits until the companion works, says so by its exit code and is gone: so it is no child of the
host, leaves no zombie and outlives it. It inherits the environment, where its exporters find their addresses and keys, but no
descriptor and no terminal. A lock makes it the only one of its settings: never two, whoever starts how many.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ckpt_observe.delivery.once import Once
from ckpt_observe.support.locks import FileLock

MODULE: Final = "ckpt_observe.cli.companion"
LOOK_EVERY: Final = 1.0
"""Seconds after which a companion that died is missed."""
START_WITHIN: Final = 60.0
"""Seconds: a loaded machine takes its time."""
ATTEMPTS: Final = 3
"""Companions that may die at once before we do without."""


def lock_path(state: Path, settings: str) -> str:
    """`settings` is a name for what it delivers to: processes with other destinations have a companion of their own."""
    return str(state / f"companion-{settings}.lock")


def _await(process: subprocess.Popen[bytes]) -> None:
    """Whenever it ends: else it would be a zombie for as long as the host lives."""
    try:
        threading.Thread(target=process.wait, name="ckpt-observe-await", daemon=True).start()
    except RuntimeError:  # the host itself ends
        process.returncode = 0  # else Python would complain that it still runs


class Companion:
    """Used by one thread."""

    def __init__(self, state: Path, settings: str, environ: Mapping[str, str]) -> None:
        self._path, self._environ = lock_path(state, settings), environ
        self._process: subprocess.Popen[bytes] | None = None
        self._starter: FileLock | None = None
        """Held while we start one, so that of many hosts that begin together one does."""
        self._since = self._looked = 0.0
        self._attempts = 0
        self._once = Once()

    def look(self) -> bool:
        """Start one if there is none. False: that is not possible, and it was said why."""
        if self._process is not None:
            return self._started(self._process)
        now = time.monotonic()
        if now - self._looked < LOOK_EVERY:
            return True
        self._looked = now
        if self._there():
            self._attempts = 0
            return True
        return self._start(now)

    def close(self, timeout: float) -> None:
        """Whoever is started goes on; we only take leave of the process between, which is gone in a moment, or with us."""
        if self._process is not None:
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                _await(self._process)
        self._let_go()

    def _there(self) -> bool:
        lock = FileLock.try_acquire(self._path)
        if lock is not None:
            lock.release()
        return lock is None

    def _start(self, now: float) -> bool:
        if self._attempts >= ATTEMPTS:
            return self._impossible(f"it ended {ATTEMPTS} times as soon as it was started")
        program = sys.executable or ""
        if not Path(program).name.startswith(("python", "pypy")):  # an application with Python inside would start itself once more
            return self._impossible(f"'{program}' is no Python interpreter")
        self._starter = FileLock.try_acquire(self._path + ".starting")
        if self._starter is None or self._there():  # somebody else starts it, or just has
            self._let_go()
            return True
        self._attempts, self._since = self._attempts + 1, now
        nowhere = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                [program, "-P", "-m", MODULE], env=self._environ, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True
            )
        except (OSError, ValueError) as error:
            self._let_go()
            return self._impossible(str(error))
        return True

    def _started(self, process: subprocess.Popen[bytes]) -> bool:
        code = process.poll()
        if code is None:
            return time.monotonic() - self._since < START_WITHIN or self._impossible(f"it is not there after {START_WITHIN:.0f} s")
        self._let_go()
        return code == 0 or self._impossible(f"exit code {code}; companion.log in the state directory says why")

    def _let_go(self) -> None:
        self._process = None
        if self._starter is not None:
            self._starter.release()
            self._starter = None

    def _impossible(self, why: str) -> bool:
        self._once.say("start", f"no companion can be started ({why}); threads of this process deliver instead")
        return False
