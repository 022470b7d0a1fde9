"""Faults of PostgreSQL, Redis and S3. Each function injects the fault that its name says, as in `injections`."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import processes
import psycopg
import redis
import stores

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores import objects
from tests.fault_matrix.injections import fill
from tests.fault_matrix.place import Place
from tests.fault_matrix.proxy import Proxy
from tests.fault_matrix.rig import STATE, Trouble
from tests.fault_matrix.servers import SECRET
from tests.faults.power import mounted

_SECONDS = 0.5
"""Timeout of requests to a server that does not answer. It applies when all is prepared: a busy disk may take longer."""
_LARGE_STATE = {**STATE, "text": "x" * 1_000_000}
_HALF = 500_000
"""Bytes of an answer with this state that arrive."""


@contextmanager
def _database(place: Place, options: str = "") -> Iterator[str]:
    """Create a database and return its URL."""
    name = place.task.replace("-", "_")
    with psycopg.connect(place.servers.postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} {options}")
        try:
            yield place.servers.postgres_url.removesuffix("postgres") + name
        finally:
            place.close()
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def full_tablespace(place: Place) -> Iterator[Trouble]:
    owner = f"uid={pwd.getpwnam('postgres').pw_uid},mode=700" if os.getuid() == 0 else "mode=700"
    name = f"full_{place.task[-8:]}"
    with (
        tempfile.TemporaryDirectory(prefix="ckpt-tablespace-") as directory,
        mounted(Path(directory), "-t", "tmpfs", "-o", f"size=16m,{owner}", "tmpfs"),
        psycopg.connect(place.servers.postgres_url, autocommit=True) as admin,
    ):
        admin.execute(f"CREATE TABLESPACE {name} LOCATION '{directory}'")
        with _database(place, f"TABLESPACE {name}") as url:
            checkpointer = place.ready(place.checkpointer(url))
            fill(Path(directory))
            yield Trouble(checkpointer, {"text": os.urandom(1_000_000).hex()})
        admin.execute(f"DROP TABLESPACE {name}")


@contextmanager
def full_append_log(place: Place) -> Iterator[Trouble]:
    options = ("--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")
    with (
        mounted(place.directory, "-t", "tmpfs", "-o", "size=2m", "tmpfs"),
        stores.redis(place.directory, *options) as (url, _),
        redis.Redis.from_url(url) as admin,
    ):
        admin.set("ready", 1)  # the server listens before it creates its files
        fill(place.directory)
        processes.eventually(lambda: _refuses(admin), "the server notices that its disk is full")
        yield Trouble(place.checkpointer(url))
        place.close()


@contextmanager
def full_bucket(place: Place) -> Iterator[Trouble]:
    port = processes.free_port()
    with mounted(place.directory, "-t", "tmpfs", "-o", "size=2m", "tmpfs"), stores.s3(place.directory, port):
        checkpointer = place.ready(place.checkpointer(place.servers.url("s3", place.monkeypatch, port=port)))
        fill(place.directory)
        yield Trouble(checkpointer, {"text": os.urandom(100_000).hex()})


@contextmanager
def failing_bucket(place: Place) -> Iterator[Trouble]:
    port = processes.free_port()
    with mounted(place.directory, "-t", "tmpfs", "tmpfs"), stores.s3(place.directory, port):
        checkpointer = place.ready(place.checkpointer(place.servers.url("s3", place.monkeypatch, port=port)))
        subprocess.run(["mount", "-o", "remount,ro", str(place.directory)], check=True)
        yield Trouble(checkpointer)


@contextmanager
def read_only_role(place: Place) -> Iterator[Trouble]:
    place.ready(place.checkpointer())
    yield Trouble(place.checkpointer(place.servers.url("postgresql", place.monkeypatch, user="reader")))


@contextmanager
def read_only_replica(place: Place) -> Iterator[Trouble]:
    with stores.redis(place.directory, "--replicaof", "127.0.0.1", str(processes.free_port())) as (url, _):
        yield Trouble(place.checkpointer(url))


@contextmanager
def other_role(place: Place) -> Iterator[Trouble]:
    place.ready(place.checkpointer())
    yield Trouble(place.checkpointer(place.servers.url(place.store, place.monkeypatch, user="stranger", secret=SECRET)))


@contextmanager
def wrong_password(place: Place) -> Iterator[Trouble]:
    place.ready(place.checkpointer())
    user = {"postgresql": "locked", "redis": "stranger", "s3": "testing"}[place.store]
    yield Trouble(place.checkpointer(place.servers.url(place.store, place.monkeypatch, user=user, secret="wrong")))


@contextmanager
def io_error_in_server(place: Place) -> Iterator[Trouble]:
    with _database(place) as url:
        checkpointer = place.ready(place.checkpointer(url))
        with psycopg.connect(url, autocommit=True) as admin:
            body = "BEGIN RAISE EXCEPTION 'could not write block' USING ERRCODE = '58030'; END"
            admin.execute(f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$")
            admin.execute("CREATE TRIGGER fail BEFORE INSERT ON ckpt_checkpoints EXECUTE FUNCTION fail()")
        yield Trouble(checkpointer)


@contextmanager
def silent_server(place: Place) -> Iterator[Trouble]:
    place.ready(place.checkpointer())
    proxy, checkpointer = _impatient(place)
    proxy.hang_after(0)
    yield Trouble(checkpointer)
    proxy.close()


@contextmanager
def silent_body(place: Place) -> Iterator[Trouble]:
    place.with_checkpoint(_LARGE_STATE)
    proxy, checkpointer = _impatient(place)
    proxy.hang_after(_HALF)
    yield Trouble(checkpointer)
    proxy.close()


def _impatient(place: Place) -> tuple[Proxy, Checkpointer]:
    """Return a proxy, and a Checkpointer behind it that waits for at most _SECONDS. PostgreSQL is connected: that has another timeout."""
    place.monkeypatch.setattr(objects, "_REQUEST_SECONDS", _SECONDS)
    proxy, url = _proxy(place)
    checkpointer = place.checkpointer(url + (f"?socket_timeout={_SECONDS}" if place.store == "redis" else ""))
    if place.store == "postgresql":
        checkpointer.store.tasks()
        checkpointer.store._connection.silence_seconds = _SECONDS  # type: ignore[attr-defined]
    return proxy, checkpointer


@contextmanager
def cut_connection(place: Place) -> Iterator[Trouble]:
    proxy, url = _proxy(place)
    checkpointer = place.ready(place.checkpointer(url))
    proxy.cut_after(0)
    yield Trouble(checkpointer)


@contextmanager
def cut_body(place: Place) -> Iterator[Trouble]:
    proxy, url = _proxy(place)
    checkpointer = place.with_checkpoint(_LARGE_STATE, url)
    proxy.cut_after(_HALF)
    yield Trouble(checkpointer)


def _proxy(place: Place) -> tuple[Proxy, str]:
    """Return a proxy and the URL of the store behind it."""
    proxy = place.servers.proxy(place.store)
    return proxy, place.servers.url(place.store, place.monkeypatch, port=proxy.port)


@contextmanager
def held_lock(place: Place) -> Iterator[Trouble]:
    with _database(place) as url:
        checkpointer = place.ready(place.checkpointer(f"{url}?options=-c%20lock_timeout%3D100"))
        with psycopg.connect(url) as other:
            other.execute("LOCK TABLE ckpt_checkpoints")
            yield Trouble(checkpointer)


@contextmanager
def server_out_of_memory(place: Place) -> Iterator[Trouble]:
    with stores.redis(place.directory, "--maxmemory", "2mb") as (url, _), redis.Redis.from_url(url) as admin:
        processes.eventually(lambda: _refuses(admin), "the memory of the server is full")
        yield Trouble(place.checkpointer(url))


def _refuses(client: redis.Redis) -> bool:
    """Write some bytes to a server. Return whether it refuses to."""
    try:
        client.rpush("filler", os.urandom(100_000))
    except redis.exceptions.ResponseError:
        return True
    return False
