"""Provokes real failures of sessions. Prints the type of the exception of each, or the result. The session's id is the kind of failure."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from contextlib import closing
from contextvars import ContextVar
from pathlib import Path

from agents import SQLiteSession
from agents.extensions.memory import AsyncSQLiteSession, EncryptedSession, SQLAlchemySession

NAME = ContextVar("NAME")
ITEM = {"role": "user", "content": "x"}


def execute(path, *statements):
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def overwrite(path):
    Path(path).write_bytes(b"garbage " * 512)
    for suffix in ("-wal", "-shm"):
        Path(path + suffix).unlink(missing_ok=True)


async def locked(path):
    """Another connection holds the write lock for longer than SQLite's usual five seconds."""
    session = SQLiteSession(NAME.get(), path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        await session.add_items([ITEM])


async def locked_async(path):
    session = AsyncSQLiteSession(NAME.get(), path)
    await session.get_items()
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        try:
            await session.add_items([ITEM])
        finally:
            await session.close()


async def unserializable(path):
    await SQLiteSession(NAME.get(), path).add_items([ITEM, {"role": "user", "content": threading.Lock()}])


async def unserializable_sqlalchemy(path):
    session = SQLAlchemySession.from_url(NAME.get(), url=f"sqlite+aiosqlite:///{path}", create_tables=True)
    try:
        await session.add_items([ITEM, {"role": "user", "content": threading.Lock()}])
    finally:
        await session._engine.dispose()


async def closed(path):
    session = SQLiteSession(NAME.get(), path)
    session.close()
    await session.add_items([ITEM])


async def no_table(path):
    session = SQLiteSession(NAME.get(), path)
    execute(path, "DROP TABLE agent_messages")
    await session.get_items()


async def not_a_database(path):
    session = SQLiteSession(NAME.get(), path)
    await session.add_items([ITEM])
    session.close()
    session = SQLiteSession(NAME.get(), path)
    overwrite(path)
    await session.get_items()


async def damaged(path, limit=None):
    """Two of five rows are not JSON; the SDK skips them and says nothing."""
    session = SQLiteSession(NAME.get(), path)
    await session.add_items([ITEM] * 5)
    execute(
        path, "UPDATE agent_messages SET message_data = '{\"half' WHERE id = 4", "UPDATE agent_messages SET message_data = '' WHERE id = 5"
    )
    return len(await session.get_items(limit))


async def damaged_limited(path):
    """A limited read decodes the damaged rows again in a larger window."""
    return await damaged(path, 2)


async def damaged_popped(path):
    """Damaged rows are dropped on the way to the last good one."""
    await damaged(path)
    return await SQLiteSession(NAME.get(), path).pop_item()


async def wrong_key(path):
    """An item that cannot be authenticated must stay in the database."""
    await EncryptedSession(NAME.get(), SQLiteSession(NAME.get(), path), "k" * 32).add_items([ITEM])
    await EncryptedSession(NAME.get(), SQLiteSession(NAME.get(), path), "w" * 32).pop_item()


KINDS = (
    locked, locked_async, unserializable, unserializable_sqlalchemy, closed, no_table, not_a_database,
    damaged, damaged_limited, damaged_popped, wrong_key,
)  # fmt: skip


async def attempt(kind):
    NAME.set(kind.__name__)
    try:
        return await kind(f"{kind.__name__}.db")
    except Exception as error:
        return type(error).__name__


async def main():
    results = await asyncio.gather(*map(attempt, KINDS))  # at once, because locks are waited for
    print(json.dumps(dict(zip([kind.__name__ for kind in KINDS], results, strict=True))))


if __name__ == "__main__":
    asyncio.run(main())
