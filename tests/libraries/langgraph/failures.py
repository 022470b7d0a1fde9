"""Provokes a real failure of a saver: `failures.py KIND PATH_OR_URL`. Prints the type of the exception that the program got."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import threading
from contextlib import closing
from typing import TypedDict

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

CONFIG = {"configurable": {"thread_id": "failing", "checkpoint_ns": ""}}
UNSERIALIZABLE = {"documents": {"first": [1, threading.Lock()]}, "harmless": "x"}


def put(saver, **values):
    checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, "1")}
    return saver.put(CONFIG, checkpoint, {"step": 1, "source": "loop"}, dict.fromkeys(values, "1"))


def locked(path):
    """Another connection holds the write lock."""
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection, closing(sqlite3.connect(path)) as other:
        saver = SqliteSaver(connection)
        saver.setup()
        connection.execute("PRAGMA busy_timeout = 20")
        other.execute("BEGIN EXCLUSIVE")
        put(saver, text="x")


def full(path):
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        saver = SqliteSaver(connection)
        saver.setup()
        connection.execute("PRAGMA max_page_count = 12")
        put(saver, text="x" * 100_000)


def read_only(path):
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        SqliteSaver(connection).setup()
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, check_same_thread=False)) as connection:
        saver = SqliteSaver(connection)
        saver.is_setup = True
        put(saver, text="x")


def corrupted(path):
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        saver = SqliteSaver(connection)
        put(saver, text="x")
        connection.execute("UPDATE checkpoints SET checkpoint = x'c1ff00'")
        connection.commit()
        saver.get_tuple(CONFIG)


def unserializable_state(path):
    """SQLite: the checkpoint is one blob."""
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        put(SqliteSaver(connection), **UNSERIALIZABLE)


def unserializable_channel(path):
    """In memory: each channel is serialized on its own."""
    put(InMemorySaver(), **UNSERIALIZABLE)


class State(TypedDict):
    documents: object


def unserializable_write(path):
    """A node returns it."""
    builder = StateGraph(State)
    builder.add_node("node", lambda state: {"documents": UNSERIALIZABLE["documents"]})
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    builder.compile(checkpointer=InMemorySaver()).invoke({"documents": None}, CONFIG)


def async_put(path, prepare, **values):
    """Save with the asynchronous saver, after a change of its database that makes this fail."""

    async def run():
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            await saver.setup()
            await prepare(saver.conn)
            checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, "1")}
            await saver.aput(CONFIG, checkpoint, {"step": 1, "source": "loop"}, {})

    asyncio.run(run())


def async_locked(path):
    async def lock(connection):
        await connection.execute("PRAGMA busy_timeout = 20")
        other.execute("BEGIN EXCLUSIVE")

    with closing(sqlite3.connect(path, check_same_thread=False)) as other:
        async_put(path, lock, text="x")


def async_full(path):
    async_put(path, lambda connection: connection.execute("PRAGMA max_page_count = 12"), text="x" * 100_000)


def async_read_only(path):
    async_put(path, lambda connection: connection.execute("PRAGMA query_only = true"), text="x")


def async_unserializable_state(path):
    async_put(path, lambda connection: connection.execute("SELECT 1"), **UNSERIALIZABLE)


def async_corrupted(path):
    async def run():
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            await saver.aput(CONFIG, {**empty_checkpoint(), "channel_values": {"text": "x"}}, {"step": 1, "source": "loop"}, {})
            await saver.conn.execute("UPDATE checkpoints SET checkpoint = x'c1ff00'")
            await saver.aget_tuple(CONFIG)

    asyncio.run(run())


def unsupported_async(path):
    """The synchronous saver has asynchronous methods that only raise."""
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        asyncio.run(SqliteSaver(connection).aget_tuple(CONFIG))


def cancelled(path):
    """Somebody else holds the saver's lock, and the caller loses patience."""

    async def run():
        async with AsyncSqliteSaver.from_conn_string(path) as saver:
            await saver.setup()
            async with saver.lock:
                save = asyncio.create_task(
                    saver.aput(CONFIG, {**empty_checkpoint(), "channel_values": {}}, {"step": 1, "source": "loop"}, {})
                )
                await asyncio.sleep(0)  # it runs until it waits for the lock
                save.cancel()
                await save

    asyncio.run(run())


def wrong_key(path):
    from langgraph.checkpoint.serde.encrypted import EncryptedSerializer  # noqa: PLC0415

    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        put(SqliteSaver(connection, serde=EncryptedSerializer.from_pycryptodome_aes(key=b"k" * 16)), text="x")
        SqliteSaver(connection, serde=EncryptedSerializer.from_pycryptodome_aes(key=b"w" * 16)).get_tuple(CONFIG)


def terminated(url):
    """The server ends the connection between two saves."""
    import psycopg  # noqa: PLC0415
    from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415

    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        put(saver, documents=["x"])
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (saver.conn.info.backend_pid,))
        put(saver, documents=["y"])


def terminated_async(url):
    import psycopg  # noqa: PLC0415
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver  # noqa: PLC0415

    async def run():
        async with AsyncPostgresSaver.from_conn_string(url) as saver:
            await saver.setup()
            with psycopg.connect(url, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s, 10000)", (saver.conn.info.backend_pid,))
            await saver.aput(CONFIG, {**empty_checkpoint(), "channel_values": {}}, {"step": 1, "source": "loop"}, {})

    asyncio.run(run())


def terminated_in_pool(url):
    import psycopg  # noqa: PLC0415
    from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415
    from psycopg.rows import dict_row  # noqa: PLC0415
    from psycopg_pool import ConnectionPool  # noqa: PLC0415

    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    with ConnectionPool(url, min_size=1, max_size=1, kwargs=options) as pool:
        saver = PostgresSaver(pool)
        saver.setup()
        with pool.connection() as connection:
            pid = connection.info.backend_pid
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
        put(saver, documents=["y"])


def refused_text(url):
    """PostgreSQL refuses a NUL character in JSON, and quotes the text before it."""
    from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415

    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        put(saver, text="what the state contains\0")


def main(kind, place):
    try:
        globals()[kind](place)
    except BaseException as error:
        print(json.dumps(type(error).__name__))


if __name__ == "__main__":
    main(*sys.argv[1:])
