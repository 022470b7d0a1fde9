"""Opens savers of LangGraph by URL: `memory:`, `sqlite:PATH`, `aiosqlite:PATH`, `postgresql:...`, `aiopostgresql:...` or `pool:...`."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing, contextmanager

from langgraph.checkpoint.memory import InMemorySaver

ASYNC = ("aiosqlite", "aiopostgresql", "aiomemory")


class CountingConnection(sqlite3.Connection):
    """Counts commits, which the savers of SQLite make once per `put` and `put_writes`."""

    commits = 0

    def commit(self):
        CountingConnection.commits += 1
        super().commit()


@contextmanager
def open_saver(url):
    scheme, _, place = url.partition(":")
    if scheme == "memory":
        yield InMemorySaver()
    elif scheme == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415

        connection = sqlite3.connect(place, check_same_thread=False, factory=CountingConnection)
        with closing(connection):
            yield SqliteSaver(connection)
    elif scheme == "postgresql":
        from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415

        with PostgresSaver.from_conn_string(url) as saver:
            saver.setup()
            yield saver
    elif scheme == "pool":
        from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415
        from psycopg.rows import dict_row  # noqa: PLC0415
        from psycopg_pool import ConnectionPool  # noqa: PLC0415

        options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        with ConnectionPool(f"postgresql:{place}", max_size=4, kwargs=options) as pool:
            saver = PostgresSaver(pool)
            saver.setup()
            yield saver


@asynccontextmanager
async def open_async_saver(url):
    scheme, _, place = url.partition(":")
    if scheme == "aiomemory":
        yield InMemorySaver()
    elif scheme == "aiosqlite":
        import aiosqlite  # noqa: PLC0415
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver  # noqa: PLC0415

        async with aiosqlite.connect(place, factory=CountingConnection) as connection:
            saver = AsyncSqliteSaver(connection)
            await saver.setup()
            CountingConnection.commits = 0
            yield saver
    elif scheme == "aiopostgresql":
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver  # noqa: PLC0415

        async with AsyncPostgresSaver.from_conn_string(f"postgresql:{place}") as saver:
            await saver.setup()
            yield saver
