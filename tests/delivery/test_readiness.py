"""Health is green while records flow, and red when they do not, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_observe.delivery import readiness
from ckpt_observe.delivery.delivery import Drain
from ckpt_observe.delivery.readiness import Readiness
from ckpt_observe.errors import SinkRetryError
from ckpt_observe.journal.journal import Journal
from tests.delivery.conftest import FakeSink, operation, until


class Secretive(FakeSink):
    def send(self, spans):
        if self.down:
            raise SinkRetryError("http://user:sk-secret@collector: refused")


@pytest.fixture
def agent(state, tmp_path, monkeypatch):
    """A journal, a sink and a running drain that attends to it, and its readiness."""
    monkeypatch.setattr(readiness, "FAILING_FOR", 0.0)
    journal = Journal(state, tmp_path / "ring", (), {}, "agent")
    sink = Secretive()
    drain = Drain(state, [sink], attends=lambda _: ["fake"])
    drain.start()
    yield journal, sink, drain, Readiness(state, drain)
    drain.close(2)
    journal.remove()


def test_green(agent):
    """Nothing to do, and work done, are both well."""
    journal, _, drain, seen = agent
    assert seen.ready() == seen.alive() == []
    operation(journal, "a")
    journal.pool.collect()
    until(lambda: drain.custody.live() == 1 and not drain.pending())
    assert seen.ready() == []


def test_sink_that_fails_for_long(agent):
    """Not ready, by the sink's name and for how long, without what it said, which may have a key in it; ready again when it is back."""
    journal, sink, _, seen = agent
    sink.down = True
    operation(journal, "a")
    journal.pool.collect()
    until(lambda: seen.ready() == ["sink fake: failing for 0 s"])
    assert seen.alive() == [], "a restart would not help"
    sink.down = False
    until(lambda: seen.ready() == [])


def test_short_failures_are_no_alarm(agent, monkeypatch):
    """A server that is restarted is not reported."""
    monkeypatch.setattr(readiness, "FAILING_FOR", 3600.0)
    journal, sink, drain, seen = agent
    sink.down = True
    operation(journal, "a")
    journal.pool.collect()
    until(lambda: drain.deliveries[0].retries > 0)
    assert seen.ready() == []


def test_backlog(agent, monkeypatch):
    """More than half of what may wait is said, with the journal."""
    journal, _, drain, seen = agent
    monkeypatch.setattr(readiness, "BACKLOG", 10)
    operation(journal, "a")
    journal.pool.collect()
    until(drain.custody.outboxes)
    assert seen.ready() == [f"journal {journal.directory.rpartition('/')[2]}: 0 MiB wait"]


def test_state_directory_that_cannot_be_written(agent, state, tmp_path):
    """Nothing would be kept."""
    *_, seen = agent
    state.rename(tmp_path / "elsewhere")
    assert seen.ready() == ["the state directory cannot be written: No such file or directory"]
    (tmp_path / "elsewhere").rename(state)


def test_two_that_ask_at_once(agent, monkeypatch):
    """They share the file that is tried: one that the other has removed already is no trouble."""
    *_, seen = agent
    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: (write(path, data), path.unlink()))
    assert seen.ready() == []


def test_drain_that_hangs(agent, monkeypatch):
    """Not alive: it must be started again."""
    *_, drain, seen = agent
    monkeypatch.setattr(readiness, "STUCK_AFTER", -1.0)
    assert seen.alive() == ["the drain did nothing for 0 s"]
    assert seen.ready() == seen.alive()
    assert drain.seen > 0
