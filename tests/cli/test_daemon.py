"""`ckpt-observe daemon` as a real process: it delivers for all processes, reports its health, and stops cleanly."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.delivery.conftest import until
from tests.delivery.rig import TIMEOUT, Daemon, Host, clean_up, environ, is_empty, outcomes
from tests.services.processes import free_port

pytestmark = pytest.mark.faults  # starts several processes; about half a minute in total


@pytest.fixture
def port():
    return str(free_port())


@pytest.fixture
def run(state, port):
    """`run(Daemon)` or `run(Host)` returns a running process. All are killed at the end."""
    programs = []

    def start(program, **more):
        variables = {"CKPT_OBSERVE_EXPORTERS": "local,prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": port, **more}
        programs.append(program(environ(state, "daemon", **variables)))
        return programs[-1]

    yield start
    for program in programs:
        clean_up(program.process)


def scrape(port):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [sample for family in text_string_to_metric_families(answer.read().decode()) for sample in family.samples]


def saves(samples, outcome):
    labels = {"operation": "save", "outcome": outcome}
    return sum(
        sample.value for sample in samples if sample.name == "checkpoint_operations_total" and labels.items() <= sample.labels.items()
    )


def sockets(process):
    """Return the sockets of a process."""
    listing = subprocess.run(["ls", "-l", f"/proc/{process.pid}/fd"], capture_output=True, text=True, check=True).stdout
    return [line.split()[-1] for line in listing.splitlines() if "socket:" in line]


def test_delivers_for_all_processes(run, state, port):
    """Two processes have no socket. The daemon's `/metrics` has their sum with exemplars, running operations, and a death at once."""
    daemon = run(Daemon).wait_until_ready()
    first, second = run(Host), run(Host)
    first.run("save a 3")
    second.run("save b 4")
    for host in (first, second):
        host.run("flush")
        assert sockets(host.process) == []
    samples = scrape(port)
    assert saves(samples, "ok") == 7
    assert [sample for sample in samples if sample.exemplar and sample.exemplar.labels.get("trace_id")]
    first.run("hang c")
    assert [sample.value for sample in scrape(port) if sample.name == "checkpoint_in_flight"] == [1]
    first.kill()
    until(lambda: saves(scrape(port), "interrupted") == 1, TIMEOUT)
    assert [sample.value for sample in scrape(port) if sample.name == "checkpoint_in_flight"] == [0]
    assert second.end() == ""
    until(lambda: is_empty(state), TIMEOUT)
    assert "All records are delivered" in daemon.stop()
    assert daemon.process.returncode == 0
    assert outcomes(state) == {
        **{f"a {number}": "ok" for number in range(3)},
        **{f"b {number}": "ok" for number in range(4)},
        "c": "interrupted",
    }


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_stop_with_pending_records(run, state, signal_number):
    """Pending records are delivered before the daemon stops. Later records wait for the next one."""
    host, daemon = run(Host), run(Daemon).wait_until_ready()
    host.run("save a 50")
    daemon.stop(signal_number)
    assert daemon.process.returncode == 0
    host.run("save b 1")
    assert host.end() == ""
    run(Daemon)
    until(lambda: len(outcomes(state)) == 51, TIMEOUT)
    until(lambda: is_empty(state), TIMEOUT)


def test_killed_and_started_again(run, state):
    """After kill -9 during delivery nothing is lost or delivered twice."""
    host, daemon = run(Host), run(Daemon).wait_until_ready()
    host.run("save a 100")
    daemon.process.kill()
    daemon.process.wait()
    host.run("save b 100")
    run(Daemon)
    host.run("flush")
    assert outcomes(state) == {f"{key} {number}": "ok" for key in "ab" for number in range(100)}


def test_second_daemon(run):
    """The second daemon logs which process holds the state directory, and exits. The first one continues."""
    first = run(Daemon).wait_until_ready()
    second = run(Daemon)
    _, stderr = second.process.communicate(timeout=TIMEOUT)
    assert second.process.returncode == 1
    assert f"already has a daemon (pid {first.process.pid} on" in stderr
    assert "Traceback" not in stderr
    assert first.get("/healthz") == (200, "ok\n")


def test_health_endpoints(run):
    """The daemon serves `/healthz` and `/readyz`, and nothing else."""
    daemon = run(Daemon).wait_until_ready()
    assert daemon.get("/healthz") == (200, "ok\n")
    assert daemon.get("/metrics") == (404, "see /healthz and /readyz\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--health", "9465"], 2, "'9465' is not HOST:PORT"),
        (["--health", "127.0.0.1:99999"], 2, "is not HOST:PORT"),
        (["--exporters", "none"], 2, "the daemon has no exporter and would deliver nothing"),
        (["--exporters", "pigeon"], 2, "'pigeon' is not valid"),
    ],
)
def test_wrong_usage(state, arguments, code, message):
    """A usage error is one line without a traceback."""
    command = [sys.executable, "-m", "ckpt_observe", "daemon", *arguments]
    done = subprocess.run(command, env=environ(state, "daemon"), capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_health_port_in_use(state):
    """If the health port is in use, the error says what to do."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        command = [sys.executable, "-m", "ckpt_observe", "daemon", "--health", f"127.0.0.1:{listener.getsockname()[1]}"]
        done = subprocess.run(command, env=environ(state, "daemon"), capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 2
    assert "--health" in done.stderr
    assert "choose another address" in done.stderr


def test_doctor_reports_a_missing_daemon(run, state):
    """If the setting asks for a daemon and none is running, doctor reports it before anything is recorded."""
    command = [sys.executable, "-m", "ckpt_observe", "doctor", "--dir", str(state)]
    environment = environ(state, "daemon")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "not running; journals that wait for it: 0" in done.stdout
    run(Daemon).wait_until_ready()
    assert re.search(" daemon +running for", subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout)


def test_doctor_reports_waiting_journals(run, state):
    """Journals that wait for a daemon are a problem while none is running."""
    host = run(Host)
    host.run("save a 1")
    command = [sys.executable, "-m", "ckpt_observe", "doctor", "--dir", str(state)]
    environment = environ(state, "daemon")
    until(lambda: "B for a daemon" in subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout, TIMEOUT)
    assert (
        "not running; journals that wait for it: 1"
        in subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    )
    run(Daemon).wait_until_ready()
    assert "not running" not in subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
