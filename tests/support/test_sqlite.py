"""SQLite files: private, transactional, upgraded once."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from types import SimpleNamespace

import pytest

from ckpt_observe.support import sqlite

MIGRATIONS = [["CREATE TABLE t (a)"], ["ALTER TABLE t ADD COLUMN b", "INSERT INTO t VALUES (1, 2)"]]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a?b%20#c.db"


@pytest.fixture
def connection(path):
    with closing(sqlite.connect(path, busy_seconds=0.1)) as connection:
        yield connection


def test_new_files_are_private(path, connection):
    """Nobody else may read the file or its log."""
    sqlite.enable_wal(connection)
    connection.execute("CREATE TABLE t (a)")
    assert {stat.S_IMODE(os.stat(f"{path}{suffix}").st_mode) for suffix in ("", "-wal", "-shm")} == {0o600}


def test_missing_file_is_not_created(path):
    """A reader does not create the file that it looks for."""
    with pytest.raises(sqlite3.OperationalError):
        sqlite.connect(path, busy_seconds=0.1, create=False)
    assert not path.exists()


def test_opening_again_keeps_our_own_locks(path, connection):
    """A second connection of the same process does not drop the lock of the first (POSIX drops locks when any descriptor is closed)."""
    connection.execute("BEGIN EXCLUSIVE")
    sqlite.connect(path, busy_seconds=0.1).close()
    program = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0.1).execute('CREATE TABLE t (a)')"
    result = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=False)
    assert "database is locked" in result.stderr


def test_transaction_is_all_or_nothing(connection):
    """An exception rolls everything back, and the connection can be used again."""
    connection.execute("CREATE TABLE t (a)")
    with pytest.raises(ZeroDivisionError), sqlite.transaction(connection):
        connection.execute("INSERT INTO t VALUES (1)")
        raise ZeroDivisionError
    with sqlite.transaction(connection):
        connection.execute("INSERT INTO t VALUES (2)")
    assert connection.execute("SELECT a FROM t").fetchall() == [(2,)]


def test_transaction_takes_the_write_lock_at_once(path, connection):
    """A second writer waits and then fails as busy, before it has read anything."""
    with closing(sqlite.connect(path, busy_seconds=0.05)) as other, sqlite.transaction(connection):
        with pytest.raises(sqlite3.OperationalError) as caught, sqlite.transaction(other):
            pytest.fail("two writers at once")
        assert sqlite.primary_code(caught.value) == sqlite3.SQLITE_BUSY


def test_snapshot_reads_one_moment(path, connection):
    """What another connection commits during a snapshot is seen after it."""
    sqlite.enable_wal(connection)
    connection.execute("CREATE TABLE t (a)")
    with closing(sqlite.connect(path, busy_seconds=1.0)) as writer:
        with sqlite.snapshot(connection):
            count = connection.execute("SELECT count(*) FROM t").fetchone()
            writer.execute("INSERT INTO t VALUES (1)")
            assert connection.execute("SELECT count(*) FROM t").fetchone() == count == (0,)
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (1,)


def test_schema_is_upgraded_from_any_version(connection):
    """Missing migrations run once, and the version before is returned."""
    versions = []
    for migrations in (MIGRATIONS[:1], MIGRATIONS, MIGRATIONS):
        with sqlite.transaction(connection):
            versions.append(sqlite.upgrade_schema(connection, migrations))
    assert versions == [0, 1, 2]
    assert sqlite.schema_version(connection) == 2
    assert connection.execute("SELECT * FROM t").fetchall() == [(1, 2)]


def test_failed_upgrade_changes_nothing(connection):
    """Tables and version are one transaction."""
    with pytest.raises(sqlite3.OperationalError), sqlite.transaction(connection):
        sqlite.upgrade_schema(connection, [["CREATE TABLE t (a)", "no SQL"]])
    assert sqlite.schema_version(connection) == 0
    assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


def test_a_newer_file_is_left_alone(connection):
    """A file of a later version keeps its version; the caller decides what that means."""
    connection.execute("PRAGMA user_version = 7")
    with sqlite.transaction(connection):
        assert sqlite.upgrade_schema(connection, MIGRATIONS) == 7
    assert sqlite.schema_version(connection) == 7


def test_commits_are_synced(connection):
    """2 is FULL."""
    sqlite.sync_commits(connection)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_file_that_cannot_be_written(tmp_path, monkeypatch):
    """The error is that of opening the file for writing: a directory, a missing permission and a read-only disk differ."""
    path = tmp_path / "x.db"
    path.touch()
    sqlite.check_writable(path)
    with pytest.raises(IsADirectoryError):
        sqlite.check_writable(tmp_path)
    monkeypatch.setattr(sqlite.os, "access", lambda *args, **kwargs: False)
    with pytest.raises(PermissionError):
        sqlite.check_writable(path)
    monkeypatch.setattr(sqlite.os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    with pytest.raises(OSError) as caught:
        sqlite.check_writable(path)
    assert caught.value.errno == errno.EROFS


def test_damage_that_is_not_utf8(path, connection):
    """A damaged schema raises sqlite3.Error, even if the message would quote bytes that are not UTF-8."""
    connection.execute("CREATE TABLE t (a)")
    connection.close()
    data = path.read_bytes()
    assert data.count(b"CREATE TABLE t (a)") == 1
    path.write_bytes(data.replace(b"CREATE TABLE t (a)", b"CREATE \xff\xfe\xfdLE t (a)"))
    with closing(sqlite.connect(path, busy_seconds=0.1)) as damaged:
        for run in (damaged.execute, lambda statement: damaged.executemany(statement, [()])):
            with pytest.raises(sqlite3.Error):
                run("DELETE FROM t")


@pytest.mark.parametrize("prefix", ["/", "//", "///"])
def test_path_with_several_slashes(path, prefix):
    """`sqlite:////data/runs.db`, as other libraries write it, and `//data` are paths, and not the name of a host."""
    address = prefix + str(path).lstrip("/")
    with closing(sqlite.connect(address, busy_seconds=0.1)) as connection:
        connection.execute("CREATE TABLE t (a)")
    with closing(sqlite.connect_read_only(address, seconds=60, immutable=True)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)


@pytest.mark.parametrize("limit", [32_766, 999, 7])
@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 250])
def test_many_rows_are_inserted(connection, monkeypatch, count, limit):
    """All rows are stored in their order, however many there are and however few parameters SQLite allows; later ones replace earlier."""
    monkeypatch.setattr(sqlite, "_MAX_PARAMETERS", limit)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b)")
    connection.execute("INSERT INTO t VALUES (1, 'former', NULL)")
    rows = [(number, f"text {number}", None) for number in range(1, count + 1)]
    with sqlite.transaction(connection):
        sqlite.insert_rows(connection, "INSERT OR REPLACE INTO t (id, a, b) VALUES (?, ?, ?)", rows)
    assert connection.execute("SELECT * FROM t").fetchall() == (rows or [(1, "former", None)])
