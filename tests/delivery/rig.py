"""Host programs, companions and daemons as real processes. A host program is controlled by lines, see `host.py`."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from ckpt_observe.journal.directory import JOURNALS
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.locks import is_locked
from ckpt_observe.tracestore import FILENAME, TraceReader
from tests.delivery.conftest import until
from tests.services.processes import free_port

TIMEOUT = 60.0
"""Seconds to wait for a condition. Machines may be busy."""
MAX_TRACES = 10_000
HOST_PROGRAM = Path(__file__).parent / "host.py"


def environ(state, delivery, **more):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CKPT_OBSERVE_", "OTEL_", "LMNR_"))}
    settings = {
        "CKPT_OBSERVE_DIR": str(state),
        "CKPT_OBSERVE_PAGES_DIR": str(state) + "-pages",
        "CKPT_OBSERVE_DELIVERY": delivery,
        "CKPT_OBSERVE_EXPORTERS": "local",
    }
    return {**inherited, **settings, **more}


class Host:
    """A host program that saves on command."""

    def __init__(self, environ):
        command = [sys.executable, str(HOST_PROGRAM)]
        self.process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer == "done", f"the host program answered {answer!r}, exit code {self.process.poll()}"

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        """Let it exit normally. Return what it wrote to standard error."""
        _, stderr = self.process.communicate(timeout=TIMEOUT)
        assert self.process.returncode == 0
        return stderr

    def zombies(self):
        """Return its children that ended and were not waited for."""
        return [pid for pid, (parent, state) in processes().items() if parent == self.process.pid and state == "Z"]


class Daemon:
    """`ckpt-observe daemon`."""

    def __init__(self, environ):
        self.port = free_port()
        command = [sys.executable, "-m", "ckpt_observe", "daemon", "--health", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)

    def get(self, page):
        """Return status and text. The status is 0 if nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{page}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def wait_until_ready(self):
        until(lambda: self.get("/readyz") == (200, "ok\n"), TIMEOUT)
        return self

    def stop(self, signal_number=signal.SIGTERM):
        """Stop it with a signal. Return what it wrote to standard error."""
        self.process.send_signal(signal_number)
        _, stderr = self.process.communicate(timeout=TIMEOUT)
        return stderr


def clean_up(process):
    """Kill a process and close its pipes, at the end of a test."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with suppress(BrokenPipeError):
                pipe.close()


def processes():
    """Return parent and state of every process of the machine, by pid."""
    table = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        table[int(path.parent.name)] = (int(parent), state)
    return table


def companions(state):
    """Return the pids of the companions of a state directory, without the intermediate processes that start them."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = (
                b"ckpt_observe.cli.companion" in (path / "cmdline").read_bytes()
                and f"CKPT_OBSERVE_DIR={state}\0".encode() in (path / "environ").read_bytes()
            )
            session = (path / "stat").read_text().rpartition(")")[2].split()[3]
        except OSError:
            continue
        if is_ours and session != path.name:  # the intermediate process leads the session; the companion does not
            pids.append(int(path.name))
    return pids


def end_companions(state):
    """Kill all companions and wait for their end: a dying one holds its lock, and a new one would leave the work to it."""
    for pid in companions(state):
        with suppress(ProcessLookupError), open(os.pidfd_open(pid), "rb", buffering=0) as process:
            signal.pidfd_send_signal(process.fileno(), signal.SIGKILL)
            select.select([process], [], [])  # readable after the process has ended


def companion_is_running(state):
    """Return whether a companion holds its lock."""
    return any(is_locked(str(path)) for path in state.glob("companion-*.lock"))


def outcomes(state):
    """Return the outcome of every operation in the local store, by id. Fail if one is there twice."""
    if not (state / FILENAME).exists():
        return {}
    with TraceReader(state / FILENAME) as reader:
        traces = reader.newest(MAX_TRACES)
        spans = [span for trace in traces for span in reader.spans(trace.trace_id) if names.OPERATION in span.attributes]
    assert len(traces) < MAX_TRACES, "more traces than this function reads"
    outcome_by_id = {span.attributes[names.ID]: span.attributes[names.OUTCOME] for span in spans}
    assert len(outcome_by_id) == len(spans), "delivered twice"
    return outcome_by_id


def is_empty(state):
    """Return whether the state directory has no journal left."""
    return not list((state / JOURNALS).iterdir())
