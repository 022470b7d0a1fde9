"""The local exporter."""

from __future__ import annotations

import os
import sqlite3

import pytest

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError
from ckpt_observe.exporters.local import LocalExporter
from ckpt_observe.support import forks
from ckpt_observe.testing.exporters import ExporterContract
from ckpt_observe.testing.spans import make_span, make_tree
from ckpt_observe.tracestore import FILENAME, TraceReader, database


def traces(directory):
    with TraceReader(directory / FILENAME) as reader:
        return sorted(int(trace.trace_id, 16) for trace in reader.newest(1000))


class TestLocalExporter(ExporterContract):
    @pytest.fixture
    def exporter(self, tmp_path):
        exporter = LocalExporter(tmp_path / "state")
        yield exporter
        exporter.close()

    def received(self, exporter):
        if not exporter.path.exists():
            return []
        with TraceReader(exporter.path) as reader:
            return [span for trace in reader.newest(1000) for span in reader.spans(trace.trace_id)]

    def break_backend(self, exporter):
        exporter.path.parent.mkdir()
        exporter.path.write_text("not a database " * 100)


@pytest.fixture
def exporter(tmp_path):
    exporter = LocalExporter(tmp_path)
    yield exporter
    exporter.close()


def test_making_a_exporter_opens_nothing(tmp_path):
    """The file is there after the first batch, not before."""
    exporter = LocalExporter(tmp_path / "state")
    exporter.send([])
    assert not (tmp_path / "state").exists()


def test_lock_is_retry_and_then_goes_in(exporter, tmp_path, monkeypatch):
    """While another process holds the store, `send` says retry; afterwards the same exporter has it."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.0)
    exporter.send(make_tree(1))
    other = sqlite3.connect(exporter.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ExporterRetryError, match="locked"):
        exporter.send(make_tree(2))
    other.execute("ROLLBACK")
    other.close()
    exporter.send(make_tree(2))
    assert traces(tmp_path) == [1, 2]


def test_directory_that_cannot_be_made_is_retry(tmp_path):
    """A path through a file cannot be opened now; somebody may put that right."""
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ExporterRetryError, match="cannot be opened"):
        LocalExporter(tmp_path / "state").send(make_tree(1))


def test_foreign_file_is_left_alone_until_it_is_moved(exporter, tmp_path):
    """A file that is not ours is kept and so are the spans, in the journal; once it is moved away, they go in without a restart."""
    exporter.path.write_text("not a database " * 100)
    with pytest.raises(ExporterRetryError, match="not a database"):
        exporter.send(make_tree(1))
    exporter.path.rename(tmp_path / "mine.txt")
    exporter.send(make_tree(1))
    assert traces(tmp_path) == [1]


@pytest.mark.parametrize("value", [object(), "\ud800"], ids=["object", "surrogate"])
def test_value_that_no_json_has_is_refused(exporter, value):
    """What never can be written is refused, so that it does not stop the spans behind it."""
    with pytest.raises(ExporterRefusedError):
        exporter.send([make_span(1, "checkpoint.save", attributes={"own": value})])


def test_removed_store_is_made_anew(exporter, tmp_path):
    """After `rm traces.db` spans go to a new file, not into the removed one."""
    exporter.send(make_tree(1))
    exporter.path.unlink()
    exporter.send(make_tree(2))
    assert traces(tmp_path) == [2]


def test_forked_child_opens_its_own(exporter, tmp_path):
    """An exporter that came through a fork writes over a connection of its own; the parent's goes on."""
    exporter.send(make_tree(1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            parents = exporter._writer
            exporter.send(make_tree(2))
            assert forks._immortal[-1] is parents  # neither used nor closed
            exporter.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    exporter.send(make_tree(3))
    assert traces(tmp_path) == [1, 2, 3]


def test_limit_is_kept(tmp_path):
    """The exporter's size is the store's."""
    exporter = LocalExporter(tmp_path, max_bytes=200_000)
    for number in range(1, 200):
        exporter.send(make_tree(number, start=number * 1000))
    exporter.close()
    assert traces(tmp_path)[-1] == 199
    assert traces(tmp_path)[0] > 1
