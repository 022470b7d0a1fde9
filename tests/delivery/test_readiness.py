"""Health is green while records flow, and red when they do not, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_observe.delivery import readiness
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.readiness import Readiness
from ckpt_observe.errors import ExporterRetryError
from ckpt_observe.journal.journal import Journal
from tests.delivery.conftest import FakeExporter, operation, until


class Secretive(FakeExporter):
    def send(self, spans):
        if self.down:
            raise ExporterRetryError("http://user:sk-secret@collector: refused")


@pytest.fixture
def daemon(state, tmp_path, monkeypatch):
    """A journal, an exporter and a running delivery that attends to it, and its readiness."""
    monkeypatch.setattr(readiness, "FAILING_FOR", 0.0)
    journal = Journal(state, tmp_path / "pages", (), {}, "daemon")
    exporter = Secretive()
    delivery = Delivery(state, [exporter], attends=lambda _: ["fake"])
    delivery.start()
    yield journal, exporter, delivery, Readiness(state, delivery)
    delivery.close(2)
    journal.remove()


def test_green(daemon):
    """Nothing to do, and work done, are both well."""
    journal, _, delivery, seen = daemon
    assert seen.ready() == seen.alive() == []
    operation(journal, "a")
    journal.pool.collect()
    until(lambda: delivery.adoption.live() == 1 and not delivery.pending())
    assert seen.ready() == []


def test_exporter_that_fails_for_long(daemon):
    """Not ready, by the exporter's name and for how long, without what it said, which may have a key in it; ready again when it is back."""
    journal, exporter, _, seen = daemon
    exporter.down = True
    operation(journal, "a")
    journal.pool.collect()
    until(lambda: seen.ready() == ["exporter fake: failing for 0 s"])
    assert seen.alive() == [], "a restart would not help"
    exporter.down = False
    until(lambda: seen.ready() == [])


def test_short_failures_are_no_alarm(daemon, monkeypatch):
    """A server that is restarted is not reported."""
    monkeypatch.setattr(readiness, "FAILING_FOR", 3600.0)
    journal, exporter, delivery, seen = daemon
    exporter.down = True
    operation(journal, "a")
    journal.pool.collect()
    until(lambda: delivery.workers[0].retries > 0)
    assert seen.ready() == []


def test_backlog(daemon, monkeypatch):
    """More than half of what may wait is said, with the journal."""
    journal, _, delivery, seen = daemon
    monkeypatch.setattr(readiness, "BACKLOG", 10)
    operation(journal, "a")
    journal.pool.collect()
    until(delivery.adoption.outboxes)
    assert seen.ready() == [f"journal {journal.directory.rpartition('/')[2]}: 0 MiB wait"]


def test_state_directory_that_cannot_be_written(daemon, state, tmp_path):
    """Nothing would be kept."""
    *_, seen = daemon
    state.rename(tmp_path / "elsewhere")
    assert seen.ready() == ["the state directory cannot be written: No such file or directory"]
    (tmp_path / "elsewhere").rename(state)


def test_two_that_ask_at_once(daemon, monkeypatch):
    """They share the file that is tried: one that the other has removed already is no trouble."""
    *_, seen = daemon
    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: (write(path, data), path.unlink()))
    assert seen.ready() == []


def test_delivery_that_hangs(daemon, monkeypatch):
    """Not alive: it must be started again."""
    *_, delivery, seen = daemon
    monkeypatch.setattr(readiness, "STUCK_AFTER", -1.0)
    assert seen.alive() == ["the delivery did nothing for 0 s"]
    assert seen.ready() == seen.alive()
    assert delivery.seen > 0
