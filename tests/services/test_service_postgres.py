"""The PostgreSQL store: the contract, on a real server."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from decimal import Decimal

import pytest

pytest.importorskip("psycopg")

import psycopg

from ckpt_observe.core import Checkpointer, Query
from ckpt_observe.core.stores import Store, postgres_connection, sql
from ckpt_observe.core.stores.postgres import PostgresStore
from ckpt_observe.core.stores.retrying import RetryingStore, RetryPolicy
from ckpt_observe.errors import AccessError, DeadlineError, StorageError, UnavailableError
from ckpt_observe.testing.stores import StoreContract

pytestmark = pytest.mark.services


@contextmanager
def stopped(pid):
    """Stop a process, as if it hung."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class TestPostgresStore(StoreContract):
    @pytest.fixture
    def store(self, postgres_url):
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("DROP TABLE IF EXISTS ckpt_checkpoints, ckpt_quarantine")
        with PostgresStore(postgres_url) as store:
            yield store

    def direct(self, store, statement, values):
        with psycopg.connect(store._url, autocommit=True) as connection:
            cursor = connection.execute(statement, values, binary=True)
            return cursor.fetchone() if cursor.description else None

    def raw_read(self, store, task, id):
        header, payload = self.direct(store, "SELECT header, payload FROM ckpt_checkpoints WHERE task = %s AND id = %s", (task, id))
        return header + payload

    def raw_write(self, store, task, id, data):
        length = data.find(b"\n") + 1 or len(data)
        statement = "UPDATE ckpt_checkpoints SET header = %s, payload = %s WHERE task = %s AND id = %s"
        self.direct(store, statement, (data[:length], data[length:], task, id))

    def another(self, store):
        return PostgresStore(store._url)

    def url(self, store):
        return store._url

    def test_commits_are_synchronous(self, store, checkpointer):
        """Whatever the server's default is, our commits are durable."""
        checkpointer.save("t", {})
        assert store._open().execute("SHOW synchronous_commit").fetchone() == ("on",)

    def test_lost_connection_raises_and_the_next_call_reconnects(self, store, checkpointer):
        """A connection that the server closed raises a retryable UnavailableError; the next call works."""
        checkpointer.save("t", {"n": 1})
        pid = store._connection.info.backend_pid
        self.direct(store, "SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(UnavailableError) as caught:
            checkpointer.load("t")
        assert caught.value.retryable
        assert checkpointer.load("t") == {"n": 1}

    @pytest.mark.parametrize("operation", ["save", "load", "list"])
    def test_hanging_server_is_a_timeout(self, store, checkpointer, operation):
        """A server that hangs on an open connection gives a retryable DeadlineError; when it works again, the next call reconnects."""
        checkpointer.save("t", {"n": 1}, id="a")
        store._connection.silence_seconds = 0.5  # only now: a busy disk is silent for longer
        call = {
            "save": lambda: checkpointer.save("t", {}, id="b"),
            "load": lambda: checkpointer.load("t"),
            "list": lambda: checkpointer.list("t"),
        }
        with stopped(store._connection.info.backend_pid), pytest.raises(DeadlineError, match="was silent for") as caught:
            call[operation]()
        assert (caught.value.code, caught.value.retryable) == ("timeout.deadline", True)
        assert checkpointer.load("t", "a") == {"n": 1}

    @pytest.fixture
    def wait(self, store, monkeypatch):
        """A function that lets a conversation wait for some seconds, as the clock of the store says, and then gives it an event or none."""
        now = 0.0
        monkeypatch.setattr(postgres_connection, "monotonic", lambda: now)

        def conversation():
            while True:
                yield "wait"

        watch = store._open()._watch(conversation())
        next(watch)

        def wait(event, seconds=0.1):
            nonlocal now
            now += seconds
            assert watch.send(event) == "wait"

        return wait

    def test_busy_connection_is_not_silent(self, wait):
        """A conversation may take longer than the server may be silent, if there is an event from time to time. Control: without one."""
        ticks = int(postgres_connection.SILENCE_SECONDS / 0.1)
        for _ in range(3):
            for _ in range(ticks - 5):
                wait(None)
            wait("ready")
        with pytest.raises(postgres_connection.SilentServerError):
            for _ in range(ticks + 5):
                wait(None)

    def test_time_in_which_this_process_does_not_run_is_not_silence(self, wait):
        """A process that was stopped, or a thread that did not get the GIL, gives the server its time after that."""
        wait(None, postgres_connection.SILENCE_SECONDS * 2)
        wait("ready", postgres_connection.SILENCE_SECONDS * 2)
        wait(None)

    def test_large_checkpoint(self, store, checkpointer):
        """A checkpoint of many packets is saved and loaded."""
        checkpointer.save("t", {"text": "x" * 50_000_000})
        assert len(checkpointer.load("t")["text"]) == 50_000_000

    @pytest.mark.parametrize(("option", "seconds"), [("", "10"), ("?connect_timeout=3", "3")])
    def test_connect_timeout_of_the_url(self, store, postgres_url, option, seconds):
        """The timeout for connecting is that of the URL; without one, it is ours."""
        with PostgresStore(postgres_url + option) as other:
            other.tasks()
            assert other._connection.info.get_parameters()["connect_timeout"] == seconds

    def test_connect_timeout_of_the_environment(self, store, postgres_url, monkeypatch):
        """The variable of libpq has precedence over our timeout."""
        monkeypatch.setenv("PGCONNECT_TIMEOUT", "4")
        with PostgresStore(postgres_url) as other:
            other.tasks()
            assert other._connection.info.get_parameters()["connect_timeout"] == "4"

    def test_repeated_lock_is_retried(self, store, checkpointer, postgres_url):
        """If another transaction locks the table during two attempts, RetryingStore saves at the third, and finds its own checkpoint."""
        checkpointer.save("t", {"n": 0})
        with psycopg.connect(postgres_url) as other, PostgresStore(f"{postgres_url}?options=-c%20lock_timeout%3D100") as limited:
            other.execute("LOCK TABLE ckpt_checkpoints IN ACCESS EXCLUSIVE MODE")
            waits = []
            policy = RetryPolicy(sleep=lambda seconds: (waits.append(seconds), len(waits) == 2 and other.rollback()))
            Checkpointer(RetryingStore(limited, policy)).save("t", {"n": 1}, id="a")
        assert len(waits) == 2
        assert checkpointer.load("t", "a") == {"n": 1}

    def test_user_without_permission(self, store, checkpointer, postgres_url):
        """A user without rights gets AccessError, without credentials in the message."""
        checkpointer.save("t", {})
        self.direct(store, "DROP ROLE IF EXISTS nobody_much", ())
        self.direct(store, "CREATE ROLE nobody_much LOGIN PASSWORD 'sesame'", ())
        url = postgres_url.replace("tester", "nobody_much:sesame")
        with PostgresStore(url) as other:
            with pytest.raises(AccessError) as caught:
                Checkpointer(other).save("t", {})
            assert "sesame" not in str(caught.value)
            assert "sesame" not in other.location

    def test_parameters_and_tags_are_found_by_index(self, store, checkpointer):
        """Whatever type a parameter has, the result is that of reading every header, and the query uses an index."""
        values = [1, 1.0, True, 0.1, -0.0, "1", None, float("nan"), Decimal("0.1"), [1]]
        for value in values:
            checkpointer.save("t", {}, metadata={"x": value}, tags=[str(value)])
        for value in values:
            for query in (Query(parameters={"x": value}), Query(parameters={"x": value}, limit=1), Query(tag=str(value))):
                assert store.find(query) == Store.find(store, query)
        plan = "EXPLAIN SELECT FROM ckpt_checkpoints WHERE facts IS NULL OR facts @> ARRAY[1]::bigint[]"
        with store._open().transaction() as _:
            store._connection.execute("SET LOCAL enable_seqscan = off")
            text = " ".join(row[0] for row in store._connection.execute(plan).fetchall())
        assert "by_fact" in text
        assert "unknown" in text

    def test_older_table_is_upgraded(self, store, checkpointer, monkeypatch):
        """Checkpoints of an earlier version can be loaded and found by parameters, also those that it saves after the upgrade."""
        monkeypatch.setattr(sql, "_MIGRATION_ROWS", 2)
        for n in range(5):
            checkpointer.save("t", {"n": n}, id=str(n), metadata={"lr": n % 2})
        store.close()
        self.direct(store, "ALTER TABLE ckpt_checkpoints DROP COLUMN facts", ())
        with self.another(store) as again, self.another(store) as other:
            assert [info.id for info in again.find(Query(parameters={"lr": 1}))] == ["3", "1"]
            assert Checkpointer(again).load("t", "4") == {"n": 4}
            assert self.direct(store, "SELECT count(*) FROM ckpt_checkpoints WHERE facts IS NULL", ()) == (0,)
            self.direct(store, "UPDATE ckpt_checkpoints SET facts = NULL WHERE id = '3'", ())
            assert [info.id for info in other.find(Query(parameters={"lr": 1}))] == ["3", "1"]

    def test_use_after_close_raises(self, store, checkpointer):
        """A closed store says that it is closed."""
        store.close()
        with pytest.raises(StorageError) as caught:
            checkpointer.save("t", {})
        assert caught.value.code == "storage.closed"
