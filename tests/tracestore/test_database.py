"""Opening the store: a new, older, newer, foreign or damaged file."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys

import pytest

from ckpt_observe.errors import TraceStoreError
from ckpt_observe.support.sqlite import transaction
from ckpt_observe.testing.spans import make_tree
from ckpt_observe.tracestore import TraceReader, TraceWriter, database


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
    """Only the owner can read the store: files are 0600, SQLite's side files included, and the directory is 0700."""
    writer.write(make_tree())
    modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in path.parent.iterdir()}
    assert set(modes.values()) == {0o600}
    assert set(modes) == {"operations.db", "operations.db-wal", "operations.db-shm"}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_store_uses_wal_and_full_sync(writer, path):
    """Readers do not block writers, and a commit survives a power failure."""
    assert writer._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writer._connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_wal_is_enabled_by_a_later_open(path):
    """If two processes that created the file kept each other from enabling WAL, the next one to open it does."""
    TraceWriter(path).close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    connection.close()
    writer = TraceWriter(path)
    assert writer._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    writer.close()


def test_opening_again_changes_nothing(writer, path):
    """Migrations are not repeated."""
    before = shape(path)
    TraceWriter(path).close()
    assert shape(path) == before


def test_path_with_special_characters(tmp_path):
    """`?`, `#`, `%` and spaces in a path are not interpreted as parts of a URI."""
    path = tmp_path / "a b?mode=ro#%41" / "operations.db"
    TraceWriter(path).close()
    assert path.exists()


def test_older_store_is_migrated_and_keeps_its_spans(monkeypatch, path):
    """Opening a store of an older version adds the new tables and keeps its spans."""
    older = TraceWriter(path)
    older.write(make_tree())
    older.close()
    monkeypatch.setattr(
        database, "MIGRATIONS", (*database.MIGRATIONS, ("CREATE TABLE note (text TEXT)", "INSERT INTO note VALUES ('hello')"))
    )
    with TraceReader(path) as reader:
        assert reader._connection.execute("SELECT text FROM note").fetchall() == [("hello",)]
        assert reader._connection.execute("PRAGMA user_version").fetchone() == (len(database.MIGRATIONS),)
        assert len(reader.newest()) == 1


def test_migrated_store_looks_like_a_new_one(monkeypatch, tmp_path):
    """Migrations give the same tables whether they run one at a time or all at once."""
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    TraceWriter(old).close()
    monkeypatch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, ("CREATE TABLE note (text TEXT)",)))
    TraceWriter(old).close()
    TraceWriter(new).close()
    assert shape(old) == shape(new)


def test_failed_migration_changes_nothing(monkeypatch, path):
    """A migration and the version number change in one transaction, so a failure undoes both."""
    TraceWriter(path).close()
    before = shape(path)
    with monkeypatch.context() as patch:
        patch.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, ("CREATE TABLE note (text TEXT)", "this is not SQL")))
        with pytest.raises(TraceStoreError):
            TraceWriter(path)
    assert shape(path) == before
    TraceWriter(path).close()


def test_newer_store_is_refused_with_advice(path):
    """A store of a newer version is rejected; the message says what to do."""
    TraceWriter(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(TraceStoreError, match=r"newer ckpt_observe.*99.*Upgrade ckpt_observe"):
        TraceReader(path)


@pytest.mark.parametrize(
    "statements",
    [
        pytest.param(("CREATE TABLE notes (text)",), id="tables"),
        pytest.param(("PRAGMA user_version = 1",), id="version"),
        pytest.param(("PRAGMA application_id = 7",), id="application"),
    ],
)
def test_database_of_another_program_is_rejected_unchanged(path, statements):
    """A database of another program is not changed by a single byte."""
    before = foreign(path, *statements)
    with pytest.raises(TraceStoreError, match="another program"):
        TraceWriter(path)
    assert path.read_bytes() == before


def test_file_that_is_not_a_database_is_rejected_unchanged(path):
    """A text file at the store's path is not changed by a single byte."""
    path.parent.mkdir()
    path.write_text("dear diary, " * 200)
    before = path.read_bytes()
    with pytest.raises(TraceStoreError, match="not a database"):
        TraceWriter(path)
    assert path.read_bytes() == before


def test_damaged_store_is_reported_and_preserved(path):
    """Overwritten pages are reported as damage; nothing is deleted."""
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


def test_transaction_locks_the_store_from_its_start(writer, path):
    """No other process can write between the first read of a transaction and its write."""
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    with transaction(writer._connection), pytest.raises(sqlite3.OperationalError, match="locked"):
        other.execute("BEGIN IMMEDIATE")
    other.execute("BEGIN IMMEDIATE")
    other.execute("ROLLBACK")
    other.close()


def test_opening_a_second_time_keeps_the_locks_of_the_first(path):
    """A failed second open in the same process does not release the locks of the first connection.

    Closing any descriptor of a file drops all fcntl locks of the process on it. Another process would then remove the log in use.
    """
    first = TraceWriter(path)
    first.write(make_tree(1))
    with pytest.raises(TraceStoreError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda *arguments, **options: (_ for _ in ()).throw(sqlite3.OperationalError))
        TraceWriter(path)
    visit = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM trace').fetchall(); c.close()"
    subprocess.run([sys.executable, "-c", visit, str(path)], check=True)
    log = path.with_name("operations.db-wal")
    assert log.exists()
    first.close()
    assert not log.exists()


def test_reader_creates_no_file(path):
    """Reading a missing store fails and creates nothing."""
    with pytest.raises(TraceStoreError):
        TraceReader(path)
    assert not path.parent.exists()
