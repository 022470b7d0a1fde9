"""Hosts, companions and daemons as real processes, for the tests of who delivers. A host is spoken to in lines, see `host.py`."""

from __future__ import annotations

import os
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

PATIENCE = 60.0
"""Seconds: these are waits for a condition, on machines that may be busy."""
MOST = 10_000
HERE = Path(__file__).parent


def environ(state, delivery, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CKPT_OBSERVE_", "OTEL_", "LMNR_"))}
    given = {
        "CKPT_OBSERVE_DIR": str(state),
        "CKPT_OBSERVE_PAGES_DIR": str(state) + "-pages",
        "CKPT_OBSERVE_DELIVERY": delivery,
        "CKPT_OBSERVE_EXPORTERS": "local",
    }
    return {**kept, **given, **more}


class Host:
    """A process that saves on command."""

    def __init__(self, environ):
        command = [sys.executable, str(HERE / "host.py")]
        self.process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def do(self, command, answer="done"):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        self.hear(answer)

    def hear(self, answer):
        line = self.process.stdout.readline().strip()
        assert line == answer, f"the host said {line!r}, not {answer!r}: {self.process.poll()}"

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        """Ends as a program does; what it wrote to standard error."""
        _, said = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0
        return said

    def zombies(self):
        """Children of it that ended and that nobody asked for."""
        return [pid for pid, (parent, state) in processes().items() if parent == self.process.pid and state == "Z"]


class Daemon:
    """`ckpt-observe daemon`."""

    def __init__(self, environ):
        self.port = free_port()
        command = [sys.executable, "-m", "ckpt_observe", "daemon", "--health", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True)

    def get(self, page):
        """Status and text; 0 where nobody listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{page}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def ready(self):
        until(lambda: self.get("/readyz") == (200, "ok\n"), PATIENCE)
        return self

    def stop(self, how=signal.SIGTERM):
        """What it wrote to standard error."""
        self.process.send_signal(how)
        _, said = self.process.communicate(timeout=PATIENCE)
        return said


def gone(process):
    """At the end of a test, whatever it came to: no process, and no pipe of it."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with suppress(BrokenPipeError):
                pipe.close()


def processes():
    """Parent and state of every process there is."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        found[int(path.parent.name)] = (int(parent), state)
    return found


def companions(state):
    """Process ids of the companions of a state directory; those between, which start them and go, are not among them."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            mine = (
                b"ckpt_observe.cli.companion" in (path / "cmdline").read_bytes()
                and f"CKPT_OBSERVE_DIR={state}\0".encode() in (path / "environ").read_bytes()
            )
            between = (path / "stat").read_text().rpartition(")")[2].split()[3] == path.name  # leads its session; the companion does not
        except OSError:
            continue
        if mine and not between:
            found.append(int(path.name))
    return found


def end_companions(state):
    """At the end of a test, whatever it came to."""
    for pid in companions(state):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def companion_there(state):
    """Whether one holds its lock."""
    return any(is_locked(str(path)) for path in state.glob("companion-*.lock"))


def outcomes(state):
    """Of every operation in the local store, by its id; one that is there twice fails."""
    if not (state / FILENAME).exists():
        return {}
    with TraceReader(state / FILENAME) as reader:
        traces = reader.newest(MOST)
        spans = [span for trace in traces for span in reader.spans(trace.trace_id) if names.OPERATION in span.attributes]
    assert len(traces) < MOST, "more than are read here"
    found = {span.attributes[names.ID]: span.attributes[names.OUTCOME] for span in spans}
    assert len(found) == len(spans), "told twice"
    return found


def nothing_left(state):
    return not list((state / JOURNALS).iterdir())
