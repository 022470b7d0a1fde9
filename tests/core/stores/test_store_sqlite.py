"""The SQLite store: the contract, and behaviour specific to SQLite."""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from ckpt_observe.core import Checkpointer, Query
from ckpt_observe.core.stores.sqlite import SqliteStore, _to_checkpoint_error
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
        """The database itself reports WAL and synchronous=FULL, so an acknowledged save is on disk."""
        checkpointer.save("t", {})
        connection = store._open()
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert os.stat(store._path).st_mode & 0o777 == 0o600

    def test_opening_again_keeps_our_own_locks(self, store, checkpointer):
        """Two stores of a process use one file; another process that opens and closes it does not remove the log that they still write to."""
        checkpointer.save("t", {"n": 1}, id="1")
        with self.another(store) as second:
            assert second.ids("t") == ("1",)
            visit = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT id FROM checkpoints').fetchall(); c.close()"
            subprocess.run([sys.executable, "-c", visit, store._path], check=True)
            checkpointer.save("t", {"n": 2}, id="2")
            count = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM checkpoints').fetchone()[0])"
            assert subprocess.check_output([sys.executable, "-c", count, store._path], text=True) == "2\n"

    def test_extended_log_loses_nothing(self, store, checkpointer):
        """The log is extended while a second connection writes, and the writer is killed: every save is there, intact."""
        code = (
            "import os, signal, sys\nfrom ckpt_observe.core import Checkpointer\na, b = Checkpointer(sys.argv[1]), Checkpointer(sys.argv[1])\n"
            "for n in range(60): (a, b, a)[n % 3].save('t', {'n': n}, id=str(n))\nos.kill(os.getpid(), signal.SIGKILL)"
        )
        subprocess.run([sys.executable, "-c", code, store.location], check=False)
        assert os.stat(f"{store._path}-wal").st_size >= 4 << 20
        assert [checkpointer.load("t", str(n))["n"] for n in range(60)] == list(range(60))
        checkpointer.save("t", {"n": 60}, id="60")
        with closing(direct(store)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert len(checkpointer.list("t")) == 61

    def test_queries_use_the_index(self, store, checkpointer):
        """Listing a task reads an index, not the table."""
        checkpointer.save("t", {})
        plan = store._open().execute("EXPLAIN QUERY PLAN SELECT header FROM checkpoints WHERE task = 't' ORDER BY created DESC, id DESC")
        assert "checkpoints_by_task" in plan.fetchone()[3]

    def test_forked_child_uses_its_own_connection(self, store, checkpointer):
        """Parent and child both continue after a fork, although the parent was using the store."""
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

    def test_use_after_close_raises(self, store, checkpointer):
        """A closed store says that it is closed."""
        store.close()
        with pytest.raises(StorageError) as caught:
            checkpointer.save("t", {})
        assert caught.value.code == "storage.closed"

    def test_newer_schema_says_upgrade(self, store, checkpointer):
        """A database with a newer schema raises CompatibilityError and is not changed."""
        checkpointer.save("t", {"n": 1})
        connection = direct(store)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
        with pytest.raises(CompatibilityError, match="upgrade"):
            Checkpointer(self.another(store)).load("t")

    def test_foreign_file_is_refused(self, tmp_path):
        """A file that is not a database raises IntegrityError and is not changed."""
        path = tmp_path / "note.txt"
        path.write_text("this is not a database, " * 100)
        with pytest.raises(IntegrityError):
            Checkpointer(f"sqlite://{path}").save("t", {})
        assert path.read_text().startswith("this is not")

    def test_flipped_byte_in_the_file_never_yields_another_state(self, store, checkpointer):
        """Wherever in the file a byte is flipped, a call returns the right answer or raises a CheckpointError."""
        saved = {checkpointer.save("t", {"n": n}, id=f"id{n}", metadata={"lr": n}).id: {"n": n} for n in range(3)}
        store.close()
        whole = Path(store._path).read_bytes()
        chance = random.Random(7)
        used = [offset for offset, byte in enumerate(whole) if byte]
        answered = 0
        for offset in chance.sample(used, 600):
            Path(store._path).write_bytes(whole[:offset] + bytes([whole[offset] ^ chance.choice((1, 255))]) + whole[offset + 1 :])
            with self.another(store) as damaged:
                reader = Checkpointer(damaged)
                for id, state in saved.items():
                    with suppress(CheckpointError):
                        assert reader.load("t", id) == state
                        answered += 1
                with suppress(CheckpointError):
                    assert reader.load("t") in saved.values()
                for query in (Query(), Query(task="t"), Query(parameters={"lr": 1})):
                    with suppress(CheckpointError):
                        assert all(info.metadata == {"lr": saved[info.id]["n"]} for info in damaged.find(query))
                with suppress(CheckpointError):
                    assert all(isinstance(name, str) for name in damaged.ids("t"))
                with suppress(CheckpointError):
                    assert all(isinstance(name, str) for name in damaged.tasks())
        assert 0 < answered < 600 * len(saved)

    @pytest.mark.parametrize("column", ["task", "id", "header", "payload"])
    @pytest.mark.parametrize("value", ["5", "1.5", "'text'", "x'ff'", "CAST(x'ff' AS TEXT)", "CAST({0} AS TEXT)", "CAST({0} AS BLOB)"])
    def test_column_of_another_type_is_damage(self, store, checkpointer, column, value):
        """One flipped bit can turn bytes into a number or text: this raises IntegrityError, and hides no other checkpoint from a listing."""
        checkpointer.save("t", {"n": 0}, id="good")
        checkpointer.save("t", {"n": 1}, id="bad")
        direct(store).execute(f"UPDATE checkpoints SET {column} = {value.format(column)} WHERE id = 'bad'").connection.close()
        for call in (
            lambda: checkpointer.load("t", "bad"),
            lambda: store.info("t", "bad"),
            lambda: store.size("t", "bad"),
            lambda: store.get_range("t", "bad", 0, 9),
            lambda: store.get_range("t", "bad", len(self.raw_read(store, "t", "good")), 9),
            lambda: checkpointer.open("t", "bad")["n"],
            lambda: store.ids("t"),
            lambda: store.newest("t"),
            store.tasks,
            checkpointer.verify,
        ):
            with suppress(CheckpointError):
                call()
        assert checkpointer.load("t", "good") == {"n": 0}
        assert "good" in [info.id for info in store.list("t")]

    def test_every_sqlite_error_is_translated(self):
        """Each primary result code becomes a CheckpointError."""
        codes = {getattr(sqlite3, name) for name in dir(sqlite3) if name.startswith("SQLITE_") and isinstance(getattr(sqlite3, name), int)}
        for code in codes:
            error = sqlite3.OperationalError("x")
            error.sqlite_errorcode = code
            assert isinstance(_to_checkpoint_error(error, "testing"), CheckpointError)

    def test_full_disk_is_a_capacity_error(self, store, checkpointer):
        """A full database raises CapacityError. Existing checkpoints remain, and saving continues once there is space."""
        checkpointer.save("t", {"n": 1})
        connection = store._open()
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(CheckpointError) as caught:
            checkpointer.save("t", {"text": "x" * 1_000_000})
        assert (caught.value.error_class, caught.value.code) == ("capacity", "storage.no_space")
        assert checkpointer.load("t") == {"n": 1}
        connection.execute("PRAGMA max_page_count = 1000000")
        checkpointer.save("t", {"n": 2})
        assert checkpointer.load("t") == {"n": 2}
