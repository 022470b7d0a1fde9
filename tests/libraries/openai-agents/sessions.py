"""Sessions of every kind, on SQLite, used as drawn from a seed: `sessions.py SEED`. Prints all results, by kind.

The database of a kind is `KIND.db`. The last kinds are classes that the program defines itself, in functions, after it is observed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys

from agents import SQLiteSession
from agents.extensions.memory import AdvancedSQLiteSession, AsyncSQLiteSession, EncryptedSession, SQLAlchemySession
from agents.memory import SessionABC
from message_log import start_log

SECRET = "what the user said"


def subclass(name, path):
    class LocalSession(SQLiteSession):
        async def add_items(self, items):
            return await super().add_items(items)

        async def get_items(self, limit=None):
            return await super().get_items(limit)

    return LocalSession(name, path)


def any_arguments(name, path):
    class AnySession(SQLiteSession):
        async def add_items(self, *args, **kwargs):
            return await super().add_items(*args, **kwargs)

        def get_items(self, *args, **kwargs):
            return super().get_items(*args, **kwargs)

        def pop_item(self):
            return super().pop_item()

    return AnySession(name, path)


def delegation(name, path):
    class LoggingSession(SessionABC):
        """Reads before it writes, and has another id than the session that it uses."""

        def __init__(self, inner):
            self.session_id, self.inner = name, inner

        async def get_items(self, limit=None):
            return await self.inner.get_items(limit)

        async def add_items(self, items):
            await self.inner.get_items(1)
            await self.inner.add_items(items)

        async def pop_item(self):
            return await self.inner.pop_item()

        async def clear_session(self):
            await self.inner.clear_session()

    return LoggingSession(SQLiteSession(f"inner {name}", path))


KINDS = {
    "sqlite": SQLiteSession,
    "async": AsyncSQLiteSession,
    "advanced": lambda name, path: AdvancedSQLiteSession(session_id=name, db_path=path, create_tables=True),
    "sqlalchemy": lambda name, path: SQLAlchemySession.from_url(
        name, url=f"sqlite+aiosqlite:///{path}", create_tables=True, ensure_ascii=False
    ),
    "encrypted": lambda name, path: EncryptedSession(name, SQLiteSession(name, path), "key" * 16),
    "subclass": subclass,
    "any_arguments": any_arguments,
    "delegation": delegation,
}


def draw_items(choice):
    contents = ["", "x" * choice.randrange(2000), "größer", SECRET]
    return [{"role": choice.choice(["user", "assistant"]), "content": choice.choice(contents)} for _ in range(choice.randrange(5))]


async def use(session, choice):
    """Use a session in one of the ways that there are. Return the result."""
    action = choice.choice(["add", "add", "add", "get", "limited", "pop", "clear"])
    if action == "add":
        return await session.add_items(draw_items(choice))
    if action in ("get", "limited"):
        return await session.get_items(**({"limit": choice.randrange(1, 4)} if action == "limited" else {}))
    return await (session.pop_item() if action == "pop" else session.clear_session())


async def run(kind, seed):
    choice = random.Random(f"{kind} {seed}")
    sessions = [KINDS[kind](f"{kind} {number}", f"{kind}.db") for number in range(3)]
    for session in sessions:
        await session.add_items([{"role": "user", "content": SECRET}])
        await session.clear_session()
    start_log(f"{kind}.db")  # the tables exist now
    results = [await use(choice.choice(sessions), choice) for _ in range(40)]
    for session in sessions:
        if kind == "async":
            await session.close()
        elif kind == "sqlalchemy":
            await session._engine.dispose()
    return results


async def main(seed):
    print(json.dumps({kind: await run(kind, seed) for kind in KINDS}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
