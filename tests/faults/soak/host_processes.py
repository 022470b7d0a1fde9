"""Host programs, companions and daemons as forks of a process that has imported everything: a start takes milliseconds.

Only the start differs from real ones (`tests/delivery/rig.py`): each fork has an environment of its own and runs the same functions.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import requests
import urllib3

from ckpt_observe import api, config, scopes, wiring
from ckpt_observe.cli import companion, main
from ckpt_observe.delivery import daemon
from ckpt_observe.exporters import otlp, otlp_http
from ckpt_observe.instrument import reference, wrappers
from ckpt_observe.journal.directory import JOURNALS, UNFINISHED
from ckpt_observe.record import operation, resource_usage
from tests.faults.soak.otlp_server import TIMEOUT, OtlpServer

IMPORTED = (requests, urllib3, api, scopes, otlp, otlp_http, reference, wrappers, operation, resource_usage)
"""Modules that a host program imports when it needs them. Imported here, so that no fork has to."""
PATIENCE = 120.0
"""Seconds to wait for a condition. Machines may be busy."""
LOGS = ("stderr", "state/companion.log")


class Site:
    """The directories of one round, and the settings of its processes."""

    def __init__(self, root: Path, mode: str, server: OtlpServer) -> None:
        self.root, self.mode = root, mode
        self.state, self.pages = root / "state", root / "pages"
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(root),
            "CKPT_OBSERVE_DIR": str(self.state),
            "CKPT_OBSERVE_PAGES_DIR": str(self.pages),
            "CKPT_OBSERVE_DELIVERY": mode,
            "CKPT_OBSERVE_EXPORTERS": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": server.url,
            "OTEL_EXPORTER_OTLP_TIMEOUT": str(round(TIMEOUT * 1000)),
        }

    def fork(self, work: Callable[[], object], environ: Mapping[str, str] | None = None) -> int:
        """Run a function in a child with the settings. Return its pid; its exit code is 0, or 1 if an exception reached its end."""
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            os.environ.clear()
            os.environ.update({**self.environ, **(environ or {})})
            log = os.open(self.root / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 2)
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def start_deliverer(self) -> int | None:
        """Start the companion or daemon and wait until it works. Return its pid; None if the host programs deliver themselves."""
        if self.mode == "companion":
            return self._start_companion()
        if self.mode == "daemon":
            pid = self.fork(lambda: main.main(["daemon", "--health", "127.0.0.1:0"]))
            until(lambda: daemon.is_running(self.state) or has_ended(pid))
            return pid
        return None

    def _start_companion(self) -> int:
        reader, writer = os.pipe()
        pid = self.fork(lambda: companion._run(writer), {"CKPT_OBSERVE_ENABLED": "false"})
        os.close(writer)
        assert os.read(reader, 1), "the companion did not start: see companion.log"
        os.close(reader)
        return pid

    def deliver_rest(self) -> int:
        """Deliver what dead processes have left, as the next process would. Return the exit code."""
        if self.mode == "in-process":
            pid = self.fork(lambda: wiring.deliver_dead(config.read(), PATIENCE))
            return wait(pid)
        pid = self.start_deliverer()
        try:
            return 0 if until(self.is_empty, fail=False) else 1
        finally:
            kill(pid)

    def is_empty(self) -> bool:
        """Return whether no journal is left. One that was being created when its process died has nothing to deliver."""
        return not [path for path in (self.state / JOURNALS).glob("*") if path.suffix != UNFINISHED]

    def read_logs(self) -> bytes:
        return b"".join((self.root / name).read_bytes() for name in LOGS if (self.root / name).exists())


def until(condition: Callable[[], object], *, fail: bool = True) -> bool:
    """Wait for a condition. Return whether it was met in time."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            assert not fail, "the condition was never met"
            return False
        time.sleep(0.005)
    return True


def has_ended(pid: int) -> bool:
    """Return whether a child has ended. It stays a zombie."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait(pid: int) -> int:
    """Wait for a child, and kill it if it hangs. Return its exit code, or minus the signal that it died of."""
    timer = threading.Timer(PATIENCE * 2, os.kill, (pid, signal.SIGKILL))
    timer.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        timer.cancel()


def kill(pid: int | None) -> int | None:
    """Kill a child, if there is one. Return its exit code."""
    if pid is None:
        return None
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
