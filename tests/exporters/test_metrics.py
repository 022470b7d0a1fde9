"""The metrics exporter: adds up, publishes one at a time, survives forks and bad files."""

from __future__ import annotations

import os
import sqlite3
import threading
import warnings

import pytest

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporters.metrics import MetricsExporter
from ckpt_observe.metricstore import store as store_module
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
    made = []

    def make(*publishers):
        made.append(MetricsExporter(tmp_path, lambda: gather(tmp_path, "1"), publishers))
        return made[-1]

    yield make
    for exporter in made:
        exporter.close()


def counted(tmp_path):
    stored, _ = gather(tmp_path, "1")
    return sum(point.value for point in stored.points.get(metrics.OPERATIONS.name, {}).values())


def test_sent_batches_add_up_and_repeats_do_not(make, tmp_path):
    """Two batches, one of them twice and an empty one: each operation once."""
    exporter = make()
    for batch in (make_tree(1), [], make_tree(2), make_tree(1)):
        exporter.send(batch)
    assert counted(tmp_path) == 2


def test_making_and_closing_leaves_nothing(make, tmp_path):
    """An exporter that had no spans has no file; it may be closed twice."""
    exporter = make()
    exporter.close()
    exporter.close()
    assert list(tmp_path.iterdir()) == []


def test_bad_file_is_retry_until_it_is_moved(make, tmp_path):
    """A file that is not ours stays as it is; once it is moved away, the same batch goes in."""
    exporter = make()
    exporter.path.write_text("not a database " * 100)
    with pytest.raises(ExporterRetryError, match="move it away"):
        exporter.send(make_tree(1))
    exporter.path.rename(tmp_path / "mine.txt")
    exporter.send(make_tree(1))
    assert counted(tmp_path) == 1


def test_lock_is_retry_and_then_counts_once(make, tmp_path, monkeypatch):
    """While another process writes for long, `send` says retry."""
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
    assert counted(tmp_path) == 2


def test_span_without_ids_is_refused(make):
    """What never can be counted does not stop those behind it."""
    span = make_span(1, "checkpoint.save")
    with pytest.raises(ExporterRefusedError):
        make().send([type(span)("none", "none", "", "x", 0, 1, "ok", {})])


def test_removed_file_is_made_anew(make, tmp_path):
    """After `rm metrics.db` numbers go to a new file, which is the one that is read."""
    exporter = make()
    exporter.send(make_tree(1))
    for path in tmp_path.glob("metrics.db*"):
        path.unlink()
    exporter.send(make_tree(2))
    assert counted(tmp_path) == 1


def test_health_is_added_as_it_grows(make, tmp_path):
    """Counters of two processes, each from zero, make one sum; nothing is added twice."""
    for delivered in (3.0, 4.0):
        exporter = make()
        exporter.start(lambda delivered=delivered: {(metrics.DELIVERED_SPANS.name, ("x",)): delivered})
        exporter.close()
    stored, _ = gather(tmp_path, "1")
    assert stored.points[metrics.DELIVERED_SPANS.name]["x",].value == 7


def test_health_is_asked_at_the_beginning_and_at_the_end(make, monkeypatch):
    """And in between only every few seconds, also when there is nothing to tell."""
    monkeypatch.setattr("ckpt_observe.exporters.metrics.TAKEOVER_INTERVAL", 3600.0)
    asked, first = [], threading.Event()

    def health():
        asked.append(1)
        first.set()
        return {}

    exporter = make()
    exporter.start(health)
    assert first.wait(10)
    exporter.close()
    assert len(asked) == 2


def test_only_one_publishes_and_the_next_takes_over(make, monkeypatch):
    """Of two with the same publisher one has the turn; when it closes, the other gets it."""
    monkeypatch.setattr("ckpt_observe.exporters.metrics.TAKEOVER_INTERVAL", 0.01)
    first, second = RecordingPublisher(), RecordingPublisher()
    one, two = make(first), make(second)
    one.start(dict)
    assert first.first.wait(10)
    two.start(dict)
    assert second.published == []
    one.close()
    assert first.closed.is_set()
    assert second.first.wait(10)


def test_last_publication_has_everything(make):
    """What was sent just before the end of a batch job is in what it leaves behind."""
    publisher = RecordingPublisher()
    exporter = make(publisher)
    exporter.start(dict)
    assert publisher.first.wait(10)
    exporter.send(make_tree(1))
    exporter.close()
    stored, _ = publisher.published[-1]
    assert sum(point.value for point in stored.points[metrics.OPERATIONS.name].values()) == 1


def test_failed_publication_is_repeated_and_told_once(make, monkeypatch, caplog):
    """An publisher that fails is tried again, with one line in the log."""
    monkeypatch.setattr("ckpt_observe.exporters.metrics.TAKEOVER_INTERVAL", 0.01)
    publisher = RecordingPublisher(fails=3)
    exporter = make(publisher)
    exporter.start(dict)
    assert publisher.first.wait(10)
    assert len([record for record in caplog.records if "not published" in record.message]) == 1


def test_forked_child_uses_nothing_of_its_parent(make, tmp_path):
    """The child gives up the turn and the connection; the parent goes on with both."""
    publisher = RecordingPublisher()
    exporter = make(publisher)
    exporter.start(dict)
    assert publisher.first.wait(10)
    exporter.send(make_tree(1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of threads at a fork; that is what is tested
        child = os.fork()
    if child == 0:
        os._exit(0 if publisher.closed.is_set() and exporter._store is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not publisher.closed.is_set()
    exporter.send(make_tree(2))
    assert counted(tmp_path) == 2
