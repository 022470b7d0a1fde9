"""Session services of every kind, used as drawn from a seed: `services.py SEED`. Prints the results and what is stored, by kind.

The database of a kind is `KIND.db`. The last kinds are classes that the program defines itself, in functions, after it is observed.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import sys
import warnings
from contextlib import closing

from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions import BaseSessionService, DatabaseSessionService, InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

SECRET = "what the user said"
APP = {"app_name": "app", "user_id": "user"}


def subclass(path):
    class LocalService(SqliteSessionService):
        async def append_event(self, session, event):
            return await super().append_event(session=session, event=event)

        async def get_session(self, **kwargs):
            return await super().get_session(**kwargs)

    return LocalService(path)


def delegation(path):
    class AuditedService(BaseSessionService):
        """Reads before it stores an event."""

        def __init__(self, inner):
            self.inner = inner

        async def create_session(self, **kwargs):
            return await self.inner.create_session(**kwargs)

        async def get_session(self, **kwargs):
            return await self.inner.get_session(**kwargs)

        async def list_sessions(self, **kwargs):
            return await self.inner.list_sessions(**kwargs)

        async def delete_session(self, **kwargs):
            await self.inner.delete_session(**kwargs)

        async def append_event(self, session, event):
            if not event.partial:
                await self.inner.get_session(**APP, session_id=session.id)
            return await self.inner.append_event(session, event)

    return AuditedService(SqliteSessionService(path))


KINDS = {
    "memory": lambda path: InMemorySessionService(),
    "sqlite": SqliteSessionService,
    "database": lambda path: DatabaseSessionService(f"sqlite+aiosqlite:///{path}"),
    "subclass": subclass,
    "delegation": delegation,
}


def draw_event(choice, number):
    text = choice.choice([SECRET, "x" * choice.randrange(2000), "größer"])
    delta = {"key": text} if choice.random() < 0.5 else {}
    return Event(
        id=f"event-{number}", author=choice.choice(["user", "agent"]), invocation_id=f"run-{number // 3}",
        content=types.Content(role="user", parts=[types.Part(text=text)]),
        actions=EventActions(state_delta=delta), partial=True if choice.random() < 0.2 else None,
    )  # fmt: skip


async def run(kind, seed):
    choice, results = random.Random(f"{kind} {seed}"), []
    service = KINDS[kind](f"{kind}.db")
    sessions = [await service.create_session(**APP, session_id=f"{kind}-{number}", state={"a": number}) for number in range(3)]
    for number in range(30):
        index = choice.randrange(len(sessions))
        await service.append_event(sessions[index], draw_event(choice, number))
        if choice.random() < 0.4:
            sessions[index] = await service.get_session(**APP, session_id=sessions[index].id)
            results.append([len(sessions[index].events), sessions[index].state])
    results.append(len((await service.list_sessions(**APP)).sessions))
    results.append(await service.get_session(**APP, session_id=f"{kind}-none"))
    stored = await asyncio.to_thread(read_store, kind, service)
    await service.delete_session(**APP, session_id=sessions[0].id)
    if kind == "database":
        await service.close()
    return {"results": results, "stored": stored}


def read_store(kind, service):
    """Return id, session and size of all stored events, and the names of the sessions. The size is known where it is stored as JSON."""
    if kind == "memory":
        sessions = service.sessions["app"]["user"]
        return {
            "events": sorted([event.id, name, None] for name in sessions for event in sessions[name].events),
            "sessions": sorted(sessions),
        }
    with closing(sqlite3.connect(f"{kind}.db")) as connection:
        events = connection.execute("SELECT id, session_id, length(event_data) FROM events ORDER BY 1, 2").fetchall()
        sessions = connection.execute("SELECT id FROM sessions ORDER BY 1").fetchall()
    return {"events": [list(event) for event in events], "sessions": [name for (name,) in sessions]}


async def main(seed):
    print(json.dumps({kind: await run(kind, seed) for kind in KINDS}))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    asyncio.run(main(*sys.argv[1:]))
