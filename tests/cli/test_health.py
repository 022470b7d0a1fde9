"""Health is green while records flow, and red when they do not, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_observe.cli import health
from ckpt_observe.cli.health import Readiness
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.errors import ExporterRetryError
from ckpt_observe.journal.journal import Journal
from tests.delivery.conftest import FakeExporter, record_operation, until


class Secretive(FakeExporter):
    def send(self, spans):
        if self.down:
            raise ExporterRetryError("http://user:sk-secret@collector: refused")


@pytest.fixture
def daemon(state, tmp_path, monkeypatch):
    """A journal, an exporter and a running delivery that attends to it, and its readiness."""
    monkeypatch.setattr(health, "FAILING_AFTER", 0.0)
    journal = Journal(state, tmp_path / "pages", (), {}, "daemon")
    exporter = Secretive()
    delivery = Delivery(state, [exporter], live_exporters=lambda _: ["fake"])
    delivery.start()
    yield journal, exporter, delivery, Readiness(state, delivery)
    delivery.close(2)
    journal.remove()


def test_green(daemon):
    """Nothing to do, and work done, are both well."""
    journal, _, delivery, seen = daemon
    assert seen.problems() == seen.liveness_problems() == []
    record_operation(journal, "a")
    journal.pool.collect()
    until(lambda: delivery.adoption.live_count() == 1 and not delivery.pending())
    assert seen.problems() == []


def test_exporter_that_fails_for_long(daemon):
    """Not ready, by the exporter's name and for how long, without what it said, which may have a key in it; ready again when it is back."""
    journal, exporter, _, seen = daemon
    exporter.down = True
    record_operation(journal, "a")
    journal.pool.collect()
    until(lambda: seen.problems() == ["exporter fake: failing for 0 s"])
    assert seen.liveness_problems() == [], "a restart would not help"
    exporter.down = False
    until(lambda: seen.problems() == [])


def test_short_failures_are_no_alarm(daemon, monkeypatch):
    """A server that is restarted is not reported."""
    monkeypatch.setattr(health, "FAILING_AFTER", 3600.0)
    journal, exporter, delivery, seen = daemon
    exporter.down = True
    record_operation(journal, "a")
    journal.pool.collect()
    until(lambda: delivery.workers[0].retries > 0)
    assert seen.problems() == []


def test_backlog(daemon, monkeypatch):
    """More than half of what may wait is said, with the journal."""
    journal, _, delivery, seen = daemon
    monkeypatch.setattr(health, "MAX_BACKLOG", 10)
    record_operation(journal, "a")
    journal.pool.collect()
    until(delivery.adoption.outboxes)
    assert seen.problems() == [f"journal {journal.directory.rpartition('/')[2]}: 0 MiB wait for delivery"]


def test_state_directory_that_cannot_be_written(daemon, state, tmp_path):
    """Nothing would be kept."""
    *_, seen = daemon
    state.rename(tmp_path / "elsewhere")
    assert seen.problems() == ["cannot write to the state directory: No such file or directory"]
    (tmp_path / "elsewhere").rename(state)


def test_two_that_ask_at_once(daemon, monkeypatch):
    """They share the file that is tried: one that the other has removed already is no trouble."""
    *_, seen = daemon
    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: (write(path, data), path.unlink()))
    assert seen.problems() == []


def test_delivery_that_hangs(daemon, monkeypatch):
    """Not alive: it must be started again."""
    *_, delivery, seen = daemon
    monkeypatch.setattr(health, "STUCK_AFTER", -1.0)
    assert seen.liveness_problems() == ["delivery has been stuck for 0 s"]
    assert seen.problems() == seen.liveness_problems()
    assert delivery.last_pass > 0
