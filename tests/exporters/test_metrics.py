"""The metrics exporter: totals, publishing by one process at a time, forks, and files that cannot be used."""

from __future__ import annotations

import os
import sqlite3
import threading
import warnings

import pytest

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporters.metrics import MetricsExporter
from ckpt_observe.metricstore import metric_store as store_module
from ckpt_observe.metricstore.snapshot import gather
from ckpt_observe.semconv import metrics
from ckpt_observe.testing.spans import make_span, make_tree


class RecordingPublisher:
    """Records what is published."""

    name, interval = "test", 60.0

    def __init__(self, fails=0):
        self.published, self.fails = [], fails
        self.first, self.closed = threading.Event(), threading.Event()

    def publish(self, gather):
        if self.fails:
            self.fails -= 1
            raise OSError("not now")
        self.published.append(gather())
        self.first.set()

    def close(self):
        self.closed.set()

    close_inherited = close


@pytest.fixture
def make(tmp_path):
    exporters = []

    def make(*publishers):
        exporters.append(MetricsExporter(tmp_path, lambda: gather(tmp_path, "1"), publishers))
        return exporters[-1]

    yield make
    for exporter in exporters:
        exporter.close()


def count_operations(tmp_path):
    stored, _ = gather(tmp_path, "1")
    return sum(point.value for point in stored.points.get(metrics.OPERATIONS.name, {}).values())


def test_batches_add_up_and_repeats_do_not(make, tmp_path):
    """With two batches, one of them sent twice, and an empty one, each operation is counted once."""
    exporter = make()
    for batch in (make_tree(1), [], make_tree(2), make_tree(1)):
        exporter.send(batch)
    assert count_operations(tmp_path) == 2


def test_unused_exporter_creates_no_file(make, tmp_path):
    """An exporter without spans creates no file and may be closed twice."""
    exporter = make()
    exporter.close()
    exporter.close()
    assert list(tmp_path.iterdir()) == []


def test_foreign_file_is_retried_until_it_is_moved(make, tmp_path):
    """A file that is not ours is not changed; once it is moved away, the same batch is counted."""
    exporter = make()
    exporter.path.write_text("not a database " * 100)
    with pytest.raises(ExporterRetryError, match="move it away"):
        exporter.send(make_tree(1))
    exporter.path.rename(tmp_path / "mine.txt")
    exporter.send(make_tree(1))
    assert count_operations(tmp_path) == 1


def test_locked_file_is_retried_and_counts_once(make, tmp_path, monkeypatch):
    """While another process holds the lock, `send` raises ExporterRetryError; afterwards the batch is counted once."""
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 0.0)
    exporter = make()
    exporter.send(make_tree(1))
    other = sqlite3.connect(exporter.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ExporterRetryError, match="locked"):
        exporter.send(make_tree(2))
    other.execute("ROLLBACK")
    other.close()
    exporter.send(make_tree(2))
    assert count_operations(tmp_path) == 2


def test_span_without_ids_is_refused(make):
    """A span that can never be counted is refused, so that it does not block later spans."""
    span = make_span(1, "checkpoint.save")
    with pytest.raises(ExporterRefusedError):
        make().send([type(span)("none", "none", "", "x", 0, 1, "ok", {})])


def test_removed_file_is_created_again(make, tmp_path):
    """After `rm metrics.db`, spans are counted in a new file, which is the one that is read."""
    exporter = make()
    exporter.send(make_tree(1))
    for path in tmp_path.glob("metrics.db*"):
        path.unlink()
    exporter.send(make_tree(2))
    assert count_operations(tmp_path) == 1


def test_health_counters_of_processes_add_up(make, tmp_path):
    """Counters of two processes, each starting at zero, add up; nothing is added twice."""
    for delivered in (3.0, 4.0):
        exporter = make()
        exporter.start(lambda delivered=delivered: {(metrics.DELIVERED_SPANS.name, ("x",)): delivered})
        exporter.close()
    stored, _ = gather(tmp_path, "1")
    assert stored.points[metrics.DELIVERED_SPANS.name]["x",].value == 7


def test_health_is_read_at_start_and_end(make, monkeypatch):
    """The counters of a process are read at the start and the end, and in between only every few seconds."""
    monkeypatch.setattr("ckpt_observe.exporters.metrics.TAKEOVER_INTERVAL", 3600.0)
    calls, first = [], threading.Event()

    def health():
        calls.append(1)
        first.set()
        return {}

    exporter = make()
    exporter.start(health)
    assert first.wait(10)
    exporter.close()
    assert len(calls) == 2


def test_another_exporter_takes_over_publishing(make, monkeypatch):
    """Of two exporters with the same publisher only one publishes; when it closes, the other takes over."""
    monkeypatch.setattr("ckpt_observe.exporters.metrics.TAKEOVER_INTERVAL", 0.01)
    first, second = RecordingPublisher(), RecordingPublisher()
    first_exporter, second_exporter = make(first), make(second)
    first_exporter.start(dict)
    assert first.first.wait(10)
    second_exporter.start(dict)
    assert second.published == []
    first_exporter.close()
    assert first.closed.is_set()
    assert second.first.wait(10)


def test_last_publication_is_complete(make):
    """Spans sent just before a batch job ends are in its last publication."""
    publisher = RecordingPublisher()
    exporter = make(publisher)
    exporter.start(dict)
    assert publisher.first.wait(10)
    exporter.send(make_tree(1))
    exporter.close()
    stored, _ = publisher.published[-1]
    assert sum(point.value for point in stored.points[metrics.OPERATIONS.name].values()) == 1


def test_failed_publication_is_retried_and_logged_once(make, monkeypatch, caplog):
    """A publisher that fails is called again; one warning is logged."""
    monkeypatch.setattr("ckpt_observe.exporters.metrics.TAKEOVER_INTERVAL", 0.01)
    publisher = RecordingPublisher(fails=3)
    exporter = make(publisher)
    exporter.start(dict)
    assert publisher.first.wait(10)
    assert len([record for record in caplog.records if "not published" in record.message]) == 1


def test_forked_child_releases_what_belongs_to_its_parent(make, tmp_path):
    """The child gives up the lock and the connection; the parent keeps both."""
    publisher = RecordingPublisher()
    exporter = make(publisher)
    exporter.start(dict)
    assert publisher.first.wait(10)
    exporter.send(make_tree(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn about threads at a fork, which is the case tested here
        child = os.fork()
    if child == 0:
        os._exit(0 if publisher.closed.is_set() and exporter._store is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not publisher.closed.is_set()
    exporter.send(make_tree(2))
    assert count_operations(tmp_path) == 2
