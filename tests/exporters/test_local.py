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
from ckpt_observe.tracestore import FILENAME, TraceLimits, TraceReader, database


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


def test_unused_exporter_creates_no_file(tmp_path):
    """The file is created with the first batch that has spans."""
    exporter = LocalExporter(tmp_path / "state")
    exporter.send([])
    assert not (tmp_path / "state").exists()


def test_locked_store_is_retried(exporter, tmp_path, monkeypatch):
    """While another process holds the lock, `send` raises ExporterRetryError; afterwards the batch is stored."""
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


def test_directory_that_cannot_be_created_is_retried(tmp_path):
    """If a file is in the place of the directory, `send` raises ExporterRetryError."""
    (tmp_path / "state").write_text("a file")
    with pytest.raises(ExporterRetryError, match="cannot be opened"):
        LocalExporter(tmp_path / "state").send(make_tree(1))


def test_foreign_file_is_retried_until_it_is_moved(exporter, tmp_path):
    """A file that is not ours is not changed; once it is moved away, the batch is stored without a restart."""
    exporter.path.write_text("not a database " * 100)
    with pytest.raises(ExporterRetryError, match="not a database"):
        exporter.send(make_tree(1))
    exporter.path.rename(tmp_path / "mine.txt")
    exporter.send(make_tree(1))
    assert traces(tmp_path) == [1]


@pytest.mark.parametrize("value", [object(), "\ud800"], ids=["object", "surrogate"])
def test_value_that_json_cannot_represent_is_refused(exporter, value):
    """A span that can never be stored is refused, so that it does not block later spans."""
    with pytest.raises(ExporterRefusedError):
        exporter.send([make_span(1, "checkpoint.save", attributes={"own": value})])


def test_removed_store_is_created_again(exporter, tmp_path):
    """After `rm operations.db`, spans are stored in a new file."""
    exporter.send(make_tree(1))
    exporter.path.unlink()
    exporter.send(make_tree(2))
    assert traces(tmp_path) == [2]


def test_forked_child_opens_its_own_connection(exporter, tmp_path):
    """After a fork the child opens a new connection; that of the parent keeps working."""
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


def test_size_limit(tmp_path):
    """The size limit of the exporter is that of the store."""
    exporter = LocalExporter(tmp_path, TraceLimits(bytes=200_000))
    for number in range(1, 200):
        exporter.send(make_tree(number, start=number * 1000))
    exporter.close()
    assert traces(tmp_path)[-1] == 199
    assert traces(tmp_path)[0] > 1
