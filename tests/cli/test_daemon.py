"""`ckpt-observe daemon` as a real process: it delivers for all, says how it is, and ends cleanly."""

from __future__ import annotations

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

pytestmark = pytest.mark.faults  # whole lives of several processes: half a minute together


@pytest.fixture
def port():
    return str(free_port())


@pytest.fixture
def run(state, port):
    """`run(Daemon)` or `run(Host)` gives a running one; at the end all of them are gone."""
    made = []

    def start(what, **more):
        given = {"CKPT_OBSERVE_EXPORTERS": "local,prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": port, **more}
        made.append(what(environ(state, "daemon", **given)))
        return made[-1]

    yield start
    for each in made:
        clean_up(each.process)


def scrape(port):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return [sample for family in text_string_to_metric_families(answer.read().decode()) for sample in family.samples]


def saves(samples, outcome):
    wanted = {"operation": "save", "outcome": outcome}
    return sum(
        sample.value for sample in samples if sample.name == "checkpoint_operations_total" and wanted.items() <= sample.labels.items()
    )


def sockets(process):
    """Inodes of the sockets of a process."""
    listed = subprocess.run(["ls", "-l", f"/proc/{process.pid}/fd"], capture_output=True, text=True, check=True).stdout
    return [line.split()[-1] for line in listed.splitlines() if "socket:" in line]


def test_one_for_all(run, state, port):
    """Two processes without a socket; one `/metrics` with their sum, exemplars included, what runs now, and a death while they live."""
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


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_stopped_with_something_to_deliver(run, state, how):
    """What is there is delivered before it goes; what comes later waits for the next one."""
    host, daemon = run(Host), run(Daemon).wait_until_ready()
    host.run("save a 50")
    daemon.stop(how)
    assert daemon.process.returncode == 0
    host.run("save b 1")
    assert host.end() == ""
    run(Daemon)
    until(lambda: len(outcomes(state)) == 51, TIMEOUT)
    until(lambda: is_empty(state), TIMEOUT)


def test_killed_and_started_again(run, state):
    """By kill -9 in the middle of its work: nothing lost, nothing twice."""
    host, daemon = run(Host), run(Daemon).wait_until_ready()
    host.run("save a 100")
    daemon.process.kill()
    daemon.process.wait()
    host.run("save b 100")
    run(Daemon)
    host.run("flush")
    assert outcomes(state) == {f"{key} {number}": "ok" for key in "ab" for number in range(100)}


def test_second_daemon(run):
    """It is told who has the directory, and ends; the first goes on."""
    first = run(Daemon).wait_until_ready()
    second = run(Daemon)
    _, said = second.process.communicate(timeout=TIMEOUT)
    assert second.process.returncode == 1
    assert f"already has a daemon (pid {first.process.pid} on" in said
    assert "Traceback" not in said
    assert first.get("/healthz") == (200, "ok\n")


def test_pages(run):
    """Alive, ready, and nothing else."""
    daemon = run(Daemon).wait_until_ready()
    assert daemon.get("/healthz") == (200, "ok\n")
    assert daemon.get("/metrics") == (404, "see /healthz and /readyz\n")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--health", "9465"], 2, "'9465' is not HOST:PORT"),
        (["--health", "127.0.0.1:99999"], 2, "is not HOST:PORT"),
        (["--exporters", "none"], 2, "the daemon has no exporter and would deliver nothing"),
        (["--exporters", "pigeon"], 2, "'pigeon' is not valid"),
    ],
)
def test_wrong_usage(state, arguments, code, words):
    """Said in one line."""
    command = [sys.executable, "-m", "ckpt_observe", "daemon", *arguments]
    done = subprocess.run(command, env=environ(state, "daemon"), capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_health_port_that_is_taken(state):
    """Said, with what to do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [sys.executable, "-m", "ckpt_observe", "daemon", "--health", f"127.0.0.1:{taken.getsockname()[1]}"]
        done = subprocess.run(command, env=environ(state, "daemon"), capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 2
    assert "--health" in done.stderr
    assert "choose another address" in done.stderr


def test_doctor_says_that_nobody_would_delivery(run, state):
    """A program that is set to leave its records to a daemon is told that there is none, before it makes the first."""
    command = [sys.executable, "-m", "ckpt_observe", "doctor", "--dir", str(state)]
    environment = environ(state, "daemon")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "none is running, journals that wait for one: 0" in done.stdout
    run(Daemon).wait_until_ready()
    assert "one is running for" in subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def test_doctor_says_that_nobody_delivers(run, state):
    """Journals that wait for a daemon are a problem while there is none."""
    host = run(Host)
    host.run("save a 1")
    command = [sys.executable, "-m", "ckpt_observe", "doctor", "--dir", str(state)]
    environment = environ(state, "daemon")
    until(
        lambda: "KiB for a daemon" in subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout, TIMEOUT
    )
    assert (
        "none is running, journals that wait for one: 1"
        in subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
    )
    run(Daemon).wait_until_ready()
    assert "none is running" not in subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
