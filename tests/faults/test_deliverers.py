"""Companions, daemons and their hosts killed at random moments, and many of them at once: nothing lost, nothing twice, never two."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from ckpt_observe.journal import spool
from ckpt_observe.metricstore.snapshot import gather
from ckpt_observe.semconv import metrics
from tests.delivery.conftest import until
from tests.delivery.rig import PATIENCE, Daemon, Host, companions, end_companions, environ, gone, nothing_left, outcomes

pytestmark = pytest.mark.faults

KILLS = 10
PACE = 0.02
"""Seconds between two saves: so that a test ends with thousands of them, and not with more than it can read."""
HOSTS = 8
EXPORTERS = {"CKPT_OBSERVE_EXPORTERS": "local,prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": "0"}


@pytest.fixture
def run(state):
    """`run(what, delivery)` starts a host or a daemon; at the end all processes are gone."""
    made = []

    def start(what, delivery, **more):
        made.append(what(environ(more.pop("state", state), delivery, **EXPORTERS, **more)))
        return made[-1]

    yield start
    for each in made:
        gone(each.process)
    end_companions(state)


def counted(state):
    """Saves that the metrics know of."""
    found = {spec.name: series for spec, series in gather(state, "")[1]}
    return sum(point.value for point in found[metrics.OPERATIONS.name].values())


class Steady(threading.Thread):
    """Saves one after another until it is stopped; `keys` are those that the host has said are saved."""

    def __init__(self, host, name):
        super().__init__(daemon=True)
        self.host, self.prefix, self.keys, self.stopping = host, name, [], threading.Event()

    def run(self):
        while not self.stopping.is_set():
            try:
                self.host.do(f"save {self.prefix}{len(self.keys)} 1")
            except (AssertionError, OSError):  # it was killed
                return
            self.keys.append(f"{self.prefix}{len(self.keys)} 0")
            time.sleep(PACE)

    def stop(self):
        self.stopping.set()
        self.join(PATIENCE)
        assert not self.is_alive()


def kill_daemons(run, between=lambda: None):
    for _ in range(KILLS):
        daemon = run(Daemon, "daemon")
        until(lambda: daemon.get("/healthz")[0] == 200, PATIENCE)  # noqa: B023 - asked at once
        time.sleep(random.uniform(0.0, 0.8))
        gone(daemon.process)
        between()
    run(Daemon, "daemon")


def kill_companions(state):
    """As long as there are any: a host has enough of companions that die in their beginnings, and delivers itself, which is promised too."""
    for _ in range(KILLS):
        patience = time.monotonic() + 15
        while not companions(state):
            if time.monotonic() > patience:
                return
            time.sleep(0.01)
        time.sleep(random.uniform(0.0, 2.5))
        end_companions(state)


def while_saving(run, delivery, kill):
    """The keys that a host saved while whoever delivers for it was killed, and the host, which has flushed."""
    host = run(Host, delivery)
    steady = Steady(host, "k")
    steady.start()
    kill()
    steady.stop()
    host.do("flush")
    assert len(steady.keys) > KILLS, "the rig must have worked"
    return steady.keys, host


@pytest.mark.parametrize("delivery", ["companion", "daemon"])
def test_deliverer_killed_at_random_moments(run, state, delivery):
    """Every save is in the local store and in the metrics, once; no zombie is left in the host."""
    keys, host = while_saving(run, delivery, (lambda: kill_daemons(run)) if delivery == "daemon" else (lambda: kill_companions(state)))
    assert outcomes(state) == dict.fromkeys(keys, "ok")
    assert counted(state) == len(keys)
    until(lambda: host.zombies() == [], PATIENCE)


def test_control_must_lose(run, state):
    """The same rig with spools that vanish while nobody delivers loses saves: so the rig can see a loss."""

    def vanish():
        for directory in (state / "journals").iterdir():
            for number in spool.segments(str(directory)):
                os.unlink(spool.segment_path(str(directory), number))

    keys, _ = while_saving(run, "daemon", lambda: kill_daemons(run, between=lambda: (time.sleep(0.3), vanish())))
    assert len(outcomes(state)) < len(keys)


@pytest.mark.parametrize("delivery", ["companion", "daemon"])
def test_hosts_killed_at_random_moments(run, state, delivery):
    """What each had saved is there once, what it was at is interrupted at most once, and their journals are gone, though no other host starts."""
    if delivery == "daemon":
        run(Daemon, delivery).ready()
    saved = []
    for number in range(KILLS):
        host = run(Host, delivery)
        steady = Steady(host, f"h{number}-")
        steady.start()
        until(lambda: steady.keys, PATIENCE)  # noqa: B023 - asked at once
        time.sleep(random.uniform(0.0, 0.5))
        host.kill()
        steady.join(PATIENCE)
        saved += steady.keys
    until(lambda: nothing_left(state), PATIENCE)
    found = outcomes(state)
    assert {key: found.get(key) for key in saved} == dict.fromkeys(saved, "ok")
    assert len(found) - len(saved) <= KILLS, "at most the one that each was at"
    assert counted(state) == len(found)


def most_companions(run, state, states):
    """The most companions at one moment while eight hosts begin together, each in its state directory."""
    hosts = [run(Host, "companion", state=each) for each in states]
    most = 0
    threads = [threading.Thread(target=host.do, args=(f"save {number} 3",), daemon=True) for number, host in enumerate(hosts)]
    for thread in threads:
        thread.start()
    threads = [threading.Thread(target=host.do, args=("flush",), daemon=True) for host in hosts if not threads.pop(0).join(PATIENCE)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, sum(len(companions(each)) for each in set(states)))
    return most


def test_eight_hosts_have_one_companion(run, state):
    """All that begin at once have the same one, and it has all they saved."""
    assert most_companions(run, state, [state] * HOSTS) == 1
    assert outcomes(state) == {f"{host} {number}": "ok" for host in range(HOSTS) for number in range(3)}


def test_control_must_have_several(run, state):
    """The same rig with a directory for each sees one for each: so it can see two."""
    states = [state.with_name(f"state-{number}") for number in range(2)]
    try:
        assert most_companions(run, state, states) == 2
    finally:
        for each in states:
            end_companions(each)


def test_agents_that_race(run, state):
    """Of two that start together one runs and the other ends with 1; what hosts save is delivered once."""
    host = run(Host, "daemon")
    for number in range(5):
        daemons = [run(Daemon, "daemon") for _ in range(2)]
        until(lambda: any(daemon.process.poll() is not None for daemon in daemons), PATIENCE)  # noqa: B023 - asked at once
        [winner] = [daemon for daemon in daemons if daemon.process.poll() is None]
        [loser] = [daemon for daemon in daemons if daemon is not winner]
        assert loser.process.returncode == 1
        host.do(f"save r{number} 10")
        host.do("flush")
        winner.process.kill()
        winner.process.wait()
    assert outcomes(state) == {f"r{race} {number}": "ok" for race in range(5) for number in range(10)}
