"""The PostgreSQL store under the contract, on a real server."""

from __future__ import annotations

import pytest

pytest.importorskip("psycopg")

import psycopg

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores.postgres import PostgresStore
from ckpt_observe.errors import AccessError, StorageError, UnavailableError
from ckpt_observe.testing.stores import StoreContract

pytestmark = pytest.mark.services


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
        """What the server's default may be, ours is durable."""
        checkpointer.save("t", {})
        assert store._opened().execute("SHOW synchronous_commit").fetchone() == ("on",)

    def test_lost_connection_is_typed_and_made_anew(self, store, checkpointer):
        """F20: a connection cut by the server is unavailable and retryable; the next call works."""
        checkpointer.save("t", {"n": 1})
        pid = store._connection.info.backend_pid
        self.direct(store, "SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(UnavailableError) as caught:
            checkpointer.load("t")
        assert caught.value.retryable
        assert checkpointer.load("t") == {"n": 1}

    def test_not_allowed(self, store, checkpointer, postgres_url):
        """L9: a user without rights is a permission error, without credentials in the message."""
        checkpointer.save("t", {})
        self.direct(store, "DROP ROLE IF EXISTS nobody_much", ())
        self.direct(store, "CREATE ROLE nobody_much LOGIN PASSWORD 'sesame'", ())
        url = postgres_url.replace("tester", "nobody_much:sesame")
        with pytest.raises(AccessError) as caught:
            Checkpointer(url).save("t", {})
        assert "sesame" not in str(caught.value)
        assert "sesame" not in PostgresStore(url).location

    def test_used_after_close(self, store, checkpointer):
        """A closed store says so."""
        store.close()
        with pytest.raises(StorageError) as caught:
            checkpointer.save("t", {})
        assert caught.value.code == "storage.closed"
