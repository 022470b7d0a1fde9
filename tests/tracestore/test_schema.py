"""Opening the store: new, old, newer, foreign, damaged."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys

import pytest

from ckpt_observe.errors import TraceStoreError
from ckpt_observe.testing.spans import make_tree
from ckpt_observe.tracestore import TraceReader, TraceWriter, schema


def shape(path):
    connection = sqlite3.connect(path)
    try:
        return sorted(connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall())
    finally:
        connection.close()


def foreign(path, *statements):
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path.read_bytes()


def test_new_store_is_private(writer, path):
    """Nobody else may read what a program's checkpoints are called: 0600 in a directory of 0700, SQLite's side files included."""
    writer.write(make_tree())
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert set(modes) == {"traces.db", "traces.db-wal", "traces.db-shm"}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_store_is_wal_and_full(writer, path):
    """Readers do not stop writers, and a commit outlives a power cut."""
    assert writer._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_opening_again_changes_nothing(writer, path):
    """A migration that ran is not run again."""
    before = shape(path)
    TraceWriter(path).close()
    assert shape(path) == before


def test_odd_path_opens(tmp_path):
    """A path is a path, not a URI: `?`, `#`, `%` and spaces are letters in it."""
    path = tmp_path / "a b?mode=ro#%41" / "traces.db"
    TraceWriter(path).close()
    assert path.exists()


def test_older_store_is_migrated_and_keeps_its_spans(monkeypatch, path):
    """A store of an older version gets the new tables, and what it held is still there."""
    older = TraceWriter(path)
    older.write(make_tree())
    older.close()
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE note (text TEXT)", "INSERT INTO note VALUES ('hello')")))
    with TraceReader(path) as reader:
        assert reader._connection.execute("SELECT text FROM note").fetchall() == [("hello",)]
        assert reader._connection.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)
        assert len(reader.newest()) == 1


def test_migrated_store_looks_like_a_new_one(monkeypatch, tmp_path):
    """One after the other or all at once, the migrations give the same tables."""
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    TraceWriter(old).close()
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE note (text TEXT)",)))
    TraceWriter(old).close()
    TraceWriter(new).close()
    assert shape(old) == shape(new)


def test_failed_migration_leaves_the_old_store(monkeypatch, path):
    """A migration and the record that it ran are one transaction: if it fails half way, neither happened."""
    TraceWriter(path).close()
    before = shape(path)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ("CREATE TABLE note (text TEXT)", "this is not SQL")))
        with pytest.raises(TraceStoreError):
            TraceWriter(path)
    assert shape(path) == before
    TraceWriter(path).close()


def test_newer_store_is_refused_with_advice(path):
    """A store of a newer version is not touched; the message says what to do."""
    TraceWriter(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(TraceStoreError, match=r"newer ckpt_observe.*99.*upgrade"):
        TraceReader(path)


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(("CREATE TABLE notes (text)",), id="tables"),
        pytest.param(("PRAGMA user_version = 1",), id="version"),
        pytest.param(("PRAGMA application_id = 7",), id="application"),
    ],
)
def test_database_of_another_program_is_refused_and_kept(path, statements):
    """A database that is not ours stays as it is, to the byte."""
    before = foreign(path, *statements)
    with pytest.raises(TraceStoreError, match="another program"):
        TraceWriter(path)
    assert path.read_bytes() == before


def test_file_that_is_no_database_is_refused_and_kept(path):
    """A text file at our path stays as it is, to the byte."""
    path.parent.mkdir()
    path.write_text("dear diary, " * 200)
    before = path.read_bytes()
    with pytest.raises(TraceStoreError, match="not a database"):
        TraceWriter(path)
    assert path.read_bytes() == before


def test_damaged_store_is_said_and_kept(path):
    """Overwritten pages are reported as damage with advice; nothing is deleted."""
    writer = TraceWriter(path)
    writer.write([span for trace in range(1, 50) for span in make_tree(trace)])
    writer.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    with pytest.raises(TraceStoreError, match="damaged"), TraceReader(path) as reader:
        for trace in reader.newest():
            reader.spans(trace.trace_id)
    assert path.stat().st_size == size


def test_transaction_owns_the_store_from_its_first_line(writer, path):
    """Between a transaction's first read and its write nobody else writes, so it never fails half way for having read too early."""
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    with schema.transaction(writer._connection), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    other.close()


def test_opening_a_second_time_keeps_the_first_one_s_lock(path):
    """A process that opens its store twice still holds it: another process that comes and goes does not take the log for unused.

    With fcntl's locks any closed descriptor of the file would drop them, and the other would remove the log under our writer.
    """
    first = TraceWriter(path)
    first.write(make_tree(1))
    with pytest.raises(TraceStoreError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *arguments, **options: (_ for _ in ()).throw(sqlite3.OperationalError))
        TraceWriter(path)
    visit = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM trace').fetchall(); c.close()"
    subprocess.run([sys.executable, "-c", visit, str(path)], check=True)
    log = path.with_name("traces.db-wal")
    assert log.exists()
    first.close()
    assert not log.exists()


def test_reader_makes_no_file(path):
    """Looking does not create a store."""
    with pytest.raises(TraceStoreError):
        TraceReader(path)
    assert not path.parent.exists()
