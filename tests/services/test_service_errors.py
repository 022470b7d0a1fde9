"""Errors of real servers, as their client libraries raise them, are classified."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import processes
import pytest
import stores

pytest.importorskip("psycopg")
pytest.importorskip("redis")

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ckpt_observe.core.stores import open_store
from ckpt_observe.errors import AccessError, LocationError, UnavailableError
from ckpt_observe.record.failures import classify

pytestmark = pytest.mark.services


def failure_of(function):
    with pytest.raises(Exception) as caught:
        function()
    return classify(caught.value)


def code_of(function):
    return failure_of(function).code


@pytest.fixture
def silent_port():
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def url(postgres_url):
    """A PostgreSQL server that demands a password of the user `locked`, rejects `denied`, and has a table."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        for role in ("locked LOGIN PASSWORD 'sesame'", "denied LOGIN", "plain LOGIN", "asleep NOLOGIN", "many LOGIN CONNECTION LIMIT 0"):
            admin.execute(f"CREATE ROLE {role}")
        admin.execute("CREATE TABLE states (id int PRIMARY KEY, state jsonb)")
        admin.execute("CREATE DATABASE private")
        admin.execute("REVOKE CONNECT ON DATABASE private FROM public")
        rules = Path(admin.execute("SHOW hba_file").fetchone()[0])
        first = "host all locked 127.0.0.1/32 scram-sha-256\nhost all denied 127.0.0.1/32 reject\n"
        rules.write_text(first + rules.read_text())
        admin.execute("SELECT pg_reload_conf()")
    processes.eventually(lambda: not can_connect(postgres_url.replace("tester", "denied")), "pg_hba.conf is read")
    return postgres_url


def can_connect(url):
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


class TestPostgres:
    """psycopg with a PostgreSQL server."""

    @pytest.fixture
    def connection(self, url):
        with psycopg.connect(url, autocommit=True) as connection:
            yield connection

    @pytest.mark.parametrize(
        ("user", "database", "code", "raised", "reason"),
        [
            ("locked:wrong", "postgres", "permission.authentication", AccessError, "does not accept this user and password"),
            ("locked", "postgres", "permission.authentication", AccessError, "requires a password"),
            ("denied", "postgres", "permission.authentication", AccessError, "pg_hba.conf"),
            ("ghost", "postgres", "permission.authentication", AccessError, "the user does not exist"),
            ("asleep", "postgres", "permission.authentication", AccessError, "may not log in"),
            ("plain", "private", "storage.permission", AccessError, "may not connect to the database"),
            ("plain", "missing", "configuration.invalid", LocationError, "the database does not exist"),
            ("plain", "postgres?sslmode=require", "configuration.invalid", LocationError, "does not support TLS"),
            ("plain", "postgres?keepalives=soon", "configuration.invalid", LocationError, "an option of the URL"),
            ("plain", "postgres?nonsense=1", "configuration.invalid", LocationError, "ProgrammingError"),
            ("many", "postgres", "unavailable.overloaded", UnavailableError, "too many connections"),
        ],
    )
    def test_refused_connection(self, url, user, database, code, raised, reason):
        """The reason is recognized, also by our own store; only a server with too many connections is worth a retry."""
        address = url.replace("tester", user).rpartition("/")[0] + f"/{database}"
        failure = failure_of(lambda: psycopg.connect(address))
        assert (failure.code, failure.retryable) == (code, raised is UnavailableError)
        with open_store(address) as store, pytest.raises(raised) as caught:
            store.tasks()
        assert (caught.value.code, caught.value.retryable) == (code, raised is UnavailableError)
        assert "sesame" not in str(caught.value)
        assert reason in str(caught.value)

    def test_no_server(self):
        """Nobody listens."""
        failure = failure_of(lambda: psycopg.connect(f"postgresql://x@127.0.0.1:{processes.free_port()}/x"))
        assert (failure.code, failure.retryable) == ("unavailable.connection", True)

    def test_silent_server(self, silent_port):
        """The server accepts the connection and does not answer."""
        address = f"postgresql://x@127.0.0.1:{silent_port}/x?connect_timeout=2"
        assert code_of(lambda: psycopg.connect(address)) == "timeout.deadline"

    @pytest.mark.parametrize(
        ("state", "code", "retryable"),
        [
            ("40001", "conflict.locked", True),
            ("40P01", "conflict.locked", True),
            ("53100", "storage.no_space", False),
            ("53200", "memory.exhausted", False),
            ("53300", "unavailable.overloaded", True),
            ("57P03", "unavailable.connection", True),
            ("58030", "storage.io", True),
            ("XX001", "integrity.malformed", False),
            ("3F000", "configuration.invalid", False),
        ],
    )
    def test_state(self, connection, state, code, retryable):
        """An error with this SQLSTATE, raised by the server on request."""
        failure = failure_of(lambda: connection.execute(f"DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '{state}'; END $$"))
        assert (failure.code, failure.retryable) == (code, retryable)

    @pytest.mark.parametrize(
        ("statements", "code"),
        [
            (["SELECT * FROM missing"], "configuration.invalid"),
            (["INSERT INTO states VALUES (1), (1)"], "conflict.exists"),
            (["""INSERT INTO states VALUES (1, '"\\u0000"')"""], "serialization.unsupported_type"),
            (["INSERT INTO states VALUES (1, '{')"], "serialization.unsupported_type"),
            (["SET default_transaction_read_only = on", "INSERT INTO states VALUES (1)"], "storage.read_only"),
            (["SET ROLE plain", "SELECT * FROM states"], "storage.permission"),
            (["SET statement_timeout = 10", "SELECT pg_sleep(60)"], "timeout.deadline"),
        ],
    )
    def test_statement(self, connection, statements, code):
        """The last statement fails."""
        *before, last = statements
        for statement in before:
            connection.execute(statement)
        assert code_of(lambda: connection.execute(last)) == code

    @pytest.mark.parametrize("value", [object(), "a\0b", "\ud800"], ids=["object", "NUL", "surrogate"])
    def test_value_that_cannot_be_sent(self, connection, value):
        """psycopg refuses it before the server sees it."""
        assert code_of(lambda: connection.execute("SELECT %s", (value,))) == "serialization.unsupported_type"

    def test_lock(self, url, connection):
        """Another transaction holds the lock."""
        connection.execute("SET lock_timeout = 10")
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE states")
            assert code_of(lambda: connection.execute("INSERT INTO states VALUES (9)")) == "conflict.locked"

    def test_cancelled_statement(self, url, connection):
        """A statement that somebody cancels is cancelled, not late."""
        pid = connection.info.backend_pid

        def cancel():
            with psycopg.connect(url, autocommit=True) as other:
                sleeps = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
                processes.eventually(lambda: other.execute(sleeps, (pid,)).fetchone(), "the statement runs")

        thread = threading.Thread(target=cancel)
        thread.start()
        failure = failure_of(lambda: connection.execute("SELECT pg_sleep(60)"))
        thread.join()
        assert (failure.code, failure.outcome) == ("cancelled.requested", "cancelled")

    def test_lost_connection(self, url):
        """The server ends the connection: the first call gets a SQLSTATE, the next one only a message."""
        connection = psycopg.connect(url)
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 60000)", (connection.info.backend_pid,))
        for _ in range(2):
            failure = failure_of(lambda: connection.execute("SELECT 1"))
            assert (failure.code, failure.retryable) == ("unavailable.connection", True)

    def test_crash_of_the_server(self):
        """The server dies without a word."""
        with stores.postgres() as (url, process):
            connection = psycopg.connect(url)
            os.kill(connection.info.backend_pid, signal.SIGKILL)
            assert code_of(lambda: connection.execute("SELECT 1")) == "unavailable.connection"
            connection.close()
            process.send_signal(signal.SIGQUIT)
            process.wait()
            assert code_of(lambda: psycopg.connect(url)) == "unavailable.connection"


class TestRedis:
    """redis-py with a Redis server."""

    @pytest.fixture
    def client_of(self):
        """A function that returns a client without retries."""
        clients = []

        def create(url, **options):
            clients.append(redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), **options))
            return clients[-1]

        yield create
        for client in clients:
            client.close()

    def test_password(self, tmp_path, client_of):
        """None, a wrong one, and a user that may not write."""
        with stores.redis(tmp_path, "--requirepass", "sesame") as (url, _):
            assert code_of(client_of(url).ping) == "permission.authentication"
            assert code_of(client_of(url.replace("//", "//:wrong@")).ping) == "permission.authentication"
            client_of(url.replace("//", "//:sesame@")).execute_command("ACL", "SETUSER", "reader", "on", ">x", "~*", "+get")
            client = client_of(url.replace("//", "//reader:x@"), protocol=2)
            assert code_of(lambda: client.set("a", 1)) == "storage.permission"

    def test_commands(self, redis_url, client_of):
        """Wrong values and commands."""
        client = client_of(redis_url)
        assert code_of(lambda: client.set("a", object())) == "serialization.unsupported_type"
        assert code_of(lambda: client.execute_command("JSON.SET", "a", "$", "1")) == "configuration.unsupported"
        client.set("text", "x")
        assert code_of(lambda: client.hgetall("text")) == "configuration.invalid"
        with client.pipeline() as pipeline:
            pipeline.watch("text")
            client.set("text", "y")
            pipeline.multi()
            pipeline.set("text", "z")
            assert code_of(pipeline.execute) == "conflict.locked"

    def test_full_memory(self, tmp_path, client_of):
        """The server has reached `maxmemory`."""
        with stores.redis(tmp_path, "--maxmemory", "2mb") as (url, _):
            client = client_of(url)
            assert code_of(lambda: [client.set(f"{n}", bytes(100_000)) for n in range(100)]) == "memory.exhausted"

    def test_replica(self, tmp_path, client_of):
        """A replica does not accept writes."""
        with stores.redis(tmp_path, "--replicaof", "127.0.0.1", str(processes.free_port())) as (url, _):
            assert code_of(lambda: client_of(url).set("a", 1)) == "storage.read_only"

    def test_hung_and_dead_server(self, tmp_path, client_of):
        """A server that does not answer, and one that was killed."""
        with stores.redis(tmp_path) as (url, process):
            client = client_of(url)
            client.ping()
            process.send_signal(signal.SIGSTOP)
            assert code_of(client_of(url, socket_timeout=0.2).ping) == "timeout.deadline"
            process.kill()
            process.wait()
            assert code_of(client.ping) == "unavailable.connection"
