"""The SQLite store under the contract, and what is peculiar to it."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores.sqlite import SqliteStore, _of
from ckpt_observe.errors import CheckpointError, CompatibilityError, IntegrityError, StorageError
from ckpt_observe.testing.stores import StoreContract


def direct(store):
    return sqlite3.connect(store._path, isolation_level=None)


class TestSqliteStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        with SqliteStore(f"sqlite://{tmp_path}/deep/checkpoints.db") as store:
            yield store

    def raw_read(self, store, task, id):
        connection = direct(store)
        header, payload = connection.execute("SELECT header, payload FROM checkpoints WHERE task = ? AND id = ?", (task, id)).fetchone()
        connection.close()
        return header + payload

    def raw_write(self, store, task, id, data):
        length = data.find(b"\n") + 1 or len(data)
        connection = direct(store)
        connection.execute("PRAGMA synchronous = OFF")
        values = (data[:length], data[length:], task, id)
        connection.execute("UPDATE checkpoints SET header = ?, payload = ? WHERE task = ? AND id = ?", values)
        connection.close()

    def another(self, store):
        return SqliteStore(store.location)

    def test_pragmas_are_durable(self, store, checkpointer):
        """An acknowledged save is on the disk: WAL with FULL, asked of the database itself."""
        checkpointer.save("t", {})
        connection = store._opened()
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert os.stat(store._path).st_mode & 0o777 == 0o600

    def test_extended_log_loses_nothing(self, store, checkpointer):
        """The log is made longer while another process's connection writes too, and the writer is killed: every save is there, and whole."""
        code = (
            "import os, signal, sys\nfrom ckpt_observe.core import Checkpointer\nmine, other = Checkpointer(sys.argv[1]), Checkpointer(sys.argv[1])\n"
            "for n in range(60): (mine, other, mine)[n % 3].save('t', {'n': n}, id=str(n))\nos.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", code, store.location], check=False)
        assert os.stat(f"{store._path}-wal").st_size >= 4 << 20
        assert [checkpointer.load("t", str(n))["n"] for n in range(60)] == list(range(60))
        checkpointer.save("t", {"n": 60}, id="60")
        assert direct(store).execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert len(checkpointer.list("t")) == 61

    def test_queries_use_the_index(self, store, checkpointer):
        """D6: listing a task reads an index, not the table."""
        checkpointer.save("t", {})
        plan = store._opened().execute("EXPLAIN QUERY PLAN SELECT header FROM checkpoints WHERE task = 't' ORDER BY created DESC, id DESC")
        assert "checkpoints_by_task" in plan.fetchone()[3]

    def test_forked_child_has_a_connection_of_its_own(self, store, checkpointer):
        """F17: parent and child both go on after a fork, though the parent was in the middle of using the store."""
        checkpointer.save("t", {"n": 0})
        with store._lock:
            child = os.fork()
            if child == 0:
                try:
                    checkpointer.save("t", {"n": 1}, id="from-child")
                finally:
                    os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        checkpointer.save("t", {"n": 2}, id="from-parent")
        assert [checkpointer.load("t", id)["n"] for id in ("from-child", "from-parent")] == [1, 2]

    def test_used_after_close(self, store, checkpointer):
        """A closed store says so."""
        store.close()
        with pytest.raises(StorageError) as caught:
            checkpointer.save("t", {})
        assert caught.value.code == "storage.closed"

    def test_newer_schema_says_upgrade(self, store, checkpointer):
        """D7: a database of a newer version is a compatibility error and is left alone."""
        checkpointer.save("t", {"n": 1})
        connection = direct(store)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        with pytest.raises(CompatibilityError, match="upgrade"):
            Checkpointer(self.another(store)).load("t")

    def test_foreign_file_is_refused(self, tmp_path):
        """A file that is no database is an integrity error, and stays as it is."""
        path = tmp_path / "note.txt"
        path.write_text("this is not a database, " * 100)
        with pytest.raises(IntegrityError):
            Checkpointer(f"sqlite://{path}").save("t", {})
        assert path.read_text().startswith("this is not")

    def test_every_sqlite_error_is_typed(self):
        """Each primary result code becomes one of ours; the table names those with a class of their own."""
        codes = {getattr(sqlite3, name) for name in dir(sqlite3) if name.startswith("SQLITE_") and isinstance(getattr(sqlite3, name), int)}
        for code in codes:
            error = sqlite3.OperationalError("x")
            error.sqlite_errorcode = code
            assert isinstance(_of(error, "testing"), CheckpointError)

    def test_full_disk_is_capacity(self, store, checkpointer):
        """L9, F4: a full database is a capacity error; what was there stays, and saving goes on once there is room."""
        checkpointer.save("t", {"n": 1})
        connection = store._opened()
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(CheckpointError) as caught:
            checkpointer.save("t", {"text": "x" * 1_000_000})
        assert (caught.value.error_class, caught.value.code) == ("capacity", "storage.no_space")
        assert checkpointer.load("t") == {"n": 1}
        connection.execute("PRAGMA max_page_count = 1000000")
        checkpointer.save("t", {"n": 2})
        assert checkpointer.load("t") == {"n": 2}
