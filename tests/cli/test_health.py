"""The health checks report why records are not delivered."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_observe.cli import health
from ckpt_observe.cli.health import Readiness
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.errors import ExporterRetryError
from ckpt_observe.journal.journal import Journal
from tests.delivery.conftest import FakeExporter, record_operation, until


class ExporterWithSecret(FakeExporter):
    def send(self, spans):
        if self.down:
            raise ExporterRetryError("http://user:sk-secret@collector: refused")


@pytest.fixture
def daemon(state, tmp_path, monkeypatch):
    """A journal, an exporter, the running delivery of a daemon, and its `Readiness`."""
    monkeypatch.setattr(health, "FAILING_AFTER", 0.0)
    journal = Journal(state, tmp_path / "pages", (), {}, "daemon")
    exporter = ExporterWithSecret()
    delivery = Delivery(state, [exporter], live_exporters=lambda _: ["fake"])
    delivery.start()
    yield journal, exporter, delivery, Readiness(state, delivery)
    delivery.close(2)
    journal.remove()


def test_healthy(daemon):
    """There is no problem while the delivery is idle, and after it delivered something."""
    journal, _, delivery, readiness = daemon
    assert readiness.problems() == readiness.liveness_problems() == []
    record_operation(journal, "a")
    journal.pool.collect()
    until(lambda: delivery.adoption.live_count() == 1 and not delivery.pending())
    assert readiness.problems() == []


def test_failing_exporter(daemon):
    """Reports name and duration, but not the error, which may contain a key. Ready again after the next success."""
    journal, exporter, _, readiness = daemon
    exporter.down = True
    record_operation(journal, "a")
    journal.pool.collect()
    until(lambda: readiness.problems() == ["exporter fake: failing for 0 s"])
    assert readiness.liveness_problems() == [], "a restart of the daemon would not help"
    exporter.down = False
    until(lambda: readiness.problems() == [])


def test_short_failure_is_not_reported(daemon, monkeypatch):
    """The restart of a server is not a problem."""
    monkeypatch.setattr(health, "FAILING_AFTER", 3600.0)
    journal, exporter, delivery, readiness = daemon
    exporter.down = True
    record_operation(journal, "a")
    journal.pool.collect()
    until(lambda: delivery.workers[0].retries > 0)
    assert readiness.problems() == []


def test_backlog(daemon, monkeypatch):
    """A journal that uses more than half of its limit is reported."""
    journal, _, delivery, readiness = daemon
    monkeypatch.setattr(health, "MAX_BACKLOG", 10)
    record_operation(journal, "a")
    journal.pool.collect()
    until(delivery.adoption.outboxes)
    assert readiness.problems() == [f"journal {journal.directory.rpartition('/')[2]}: 0 MiB wait for delivery"]


def test_read_only_state_directory(daemon, state, tmp_path):
    """A state directory that cannot be written is reported."""
    *_, readiness = daemon
    state.rename(tmp_path / "elsewhere")
    assert readiness.problems() == ["cannot write to the state directory: No such file or directory"]
    (tmp_path / "elsewhere").rename(state)


def test_concurrent_requests(daemon, monkeypatch):
    """Concurrent requests share the probe file. It is not a problem if another request has removed it."""
    *_, readiness = daemon
    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", lambda path, data: (write(path, data), path.unlink()))
    assert readiness.problems() == []


def test_stuck_delivery(daemon, monkeypatch):
    """A stuck delivery fails both checks, so that the daemon is restarted."""
    *_, delivery, readiness = daemon
    monkeypatch.setattr(health, "STUCK_AFTER", -1.0)
    assert readiness.liveness_problems() == ["delivery has been stuck for 0 s"]
    assert readiness.problems() == readiness.liveness_problems()
    assert delivery.last_pass > 0
