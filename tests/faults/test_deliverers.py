"""Companions, daemons and host programs killed at random moments, or started at the same time: no save is lost or counted twice."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from ckpt_observe.delivery.outbox import backlog
from ckpt_observe.journal import spool
from ckpt_observe.metricstore.snapshot import gather
from ckpt_observe.semconv import metrics
from tests.delivery.conftest import until
from tests.delivery.rig import TIMEOUT, Daemon, Host, clean_up, companions, end_companions, environ, is_empty, outcomes

pytestmark = pytest.mark.faults

KILLS = 10
PACE = 0.02
"""Seconds between two saves. It keeps the number of spans that a test has to read in the thousands."""
HOSTS = 8
EXPORTERS = {"CKPT_OBSERVE_EXPORTERS": "local,prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "0"}


@pytest.fixture
def run(state):
    """A function `run(program, delivery)` that starts a host program or a daemon. All are killed at the end."""
    programs = []

    def start(program, delivery, **variables):
        programs.append(program(environ(variables.pop("state", state), delivery, **EXPORTERS, **variables)))
        return programs[-1]

    yield start
    for each in programs:
        clean_up(each.process)
    end_companions(state)


def saves_in_metrics(state):
    """Return the number of saves in the metric store."""
    series_by_name = {metric.name: series for metric, series in gather(state, "")[1]}
    return sum(point.value for point in series_by_name[metrics.OPERATIONS.name].values())


class Saver(threading.Thread):
    """Lets a host program save until it is stopped. `keys` are the saves that the host program has confirmed."""

    def __init__(self, host, name):
        super().__init__(daemon=True)
        self.host, self.prefix, self.keys, self.stopping = host, name, [], threading.Event()

    def run(self):
        while not self.stopping.is_set():
            try:
                self.host.run(f"save {self.prefix}{len(self.keys)} 1")
            except (AssertionError, OSError):  # it was killed
                return
            self.keys.append(f"{self.prefix}{len(self.keys)} 0")
            time.sleep(PACE)

    def stop(self):
        self.stopping.set()
        self.join(TIMEOUT)
        assert not self.is_alive()


def kill_daemons(run, between=lambda: None):
    for _ in range(KILLS):
        daemon = run(Daemon, "daemon")
        until(lambda: daemon.get("/healthz")[0] == 200, TIMEOUT)  # noqa: B023 - called in this iteration only
        time.sleep(random.uniform(0.0, 0.8))
        clean_up(daemon.process)
        between()
    run(Daemon, "daemon")


def kill_companions(state):
    """Kill companions until no new one appears: if several die early, the host program delivers by itself."""
    for _ in range(KILLS):
        deadline = time.monotonic() + 15
        while not companions(state):
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        time.sleep(random.uniform(0.0, 2.5))
        end_companions(state)


def save_during(kill, run, delivery):
    """Let a host program save while `kill()` kills its deliverers, then flush. Return the keys of the saves, and the host program."""
    host = run(Host, delivery)
    saver = Saver(host, "k")
    saver.start()
    kill()
    saver.stop()
    host.run("flush")
    assert len(saver.keys) > KILLS, "the host program must have saved"
    return saver.keys, host


@pytest.mark.parametrize("delivery", ["companion", "daemon"])
def test_deliverer_killed_at_random_moments(run, state, delivery):
    """Every save is in the trace store and in the metrics once, and the host program has no zombie child."""
    keys, host = save_during((lambda: kill_daemons(run)) if delivery == "daemon" else (lambda: kill_companions(state)), run, delivery)
    assert outcomes(state) == dict.fromkeys(keys, "ok")
    assert saves_in_metrics(state) == len(keys)
    until(lambda: host.zombies() == [], TIMEOUT)


def test_control_detects_losses(run, state):
    """Control: if spools are deleted while no daemon runs, saves are lost, and the test detects it."""

    def delete_spools():
        journals = [str(path) for path in (state / "journals").iterdir()]
        until(lambda: any(backlog(journal, ["local"])["local"] for journal in journals), TIMEOUT)
        for journal in journals:
            for number in spool.segments(journal):
                os.unlink(spool.segment_path(journal, number))

    keys, _ = save_during(lambda: kill_daemons(run, between=delete_spools), run, "daemon")
    assert len(outcomes(state)) < len(keys)


@pytest.mark.parametrize("delivery", ["companion", "daemon"])
def test_hosts_killed_at_random_moments(run, state, delivery):
    """Confirmed saves are delivered once, at most one per host is interrupted, and all journals are removed without a new host program."""
    if delivery == "daemon":
        run(Daemon, delivery).wait_until_ready()
    saved = []
    for number in range(KILLS):
        host = run(Host, delivery)
        saver = Saver(host, f"h{number}-")
        saver.start()
        until(lambda: saver.keys, TIMEOUT)  # noqa: B023 - called in this iteration only
        time.sleep(random.uniform(0.0, 0.5))
        host.kill()
        saver.join(TIMEOUT)
        saved += saver.keys
    until(lambda: is_empty(state), TIMEOUT)
    delivered = outcomes(state)
    assert {key: delivered.get(key) for key in saved} == dict.fromkeys(saved, "ok")
    assert len(delivered) - len(saved) <= KILLS, "at most the save that each was killed in"
    assert saves_in_metrics(state) == len(delivered)


def most_companions(run, state, states):
    """Start a host program per state directory at the same time. Return the highest number of companions seen at one moment."""
    hosts = [run(Host, "companion", state=each) for each in states]
    count = lambda: sum(len(companions(each)) for each in set(states))  # noqa: E731
    most = 0
    threads = [threading.Thread(target=host.run, args=(f"save {number} 3",), daemon=True) for number, host in enumerate(hosts)]
    for thread in threads:
        thread.start()
    threads = [threading.Thread(target=host.run, args=("flush",), daemon=True) for host in hosts if not threads.pop(0).join(TIMEOUT)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, count())
    return max(most, count())  # they live as long as the host programs, which are alive


def test_eight_hosts_have_one_companion(run, state):
    """Eight host programs that start at the same time share one companion, which delivers all their saves."""
    assert most_companions(run, state, [state] * HOSTS) == 1
    assert outcomes(state) == {f"{host} {number}": "ok" for host in range(HOSTS) for number in range(3)}


def test_control_detects_several_companions(run, state):
    """Control: with two state directories there are two companions, and the test detects both."""
    states = [state.with_name(f"state-{number}") for number in range(2)]
    try:
        assert most_companions(run, state, states) == 2
    finally:
        for each in states:
            end_companions(each)


def test_two_daemons_start_together(run, state):
    """One of them runs and the other exits with status 1; every save is delivered once."""
    host = run(Host, "daemon")
    for number in range(5):
        daemons = [run(Daemon, "daemon") for _ in range(2)]
        until(lambda: any(daemon.process.poll() is not None for daemon in daemons), TIMEOUT)  # noqa: B023 - called in this iteration only
        [winner] = [daemon for daemon in daemons if daemon.process.poll() is None]
        [loser] = [daemon for daemon in daemons if daemon is not winner]
        assert loser.process.returncode == 1
        host.run(f"save r{number} 10")
        host.run("flush")
        winner.process.kill()
        winner.process.wait()
    assert outcomes(state) == {f"r{race} {number}": "ok" for race in range(5) for number in range(10)}
