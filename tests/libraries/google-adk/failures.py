"""Provokes real failures of session services. Prints the type of the exception of each. The session's id is the kind of failure."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import warnings
from contextlib import closing

from google.adk.events.event import Event
from google.adk.sessions import DatabaseSessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService

APP = {"app_name": "app", "user_id": "user"}


def execute(path, statement):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


async def create(kind):
    service = SqliteSessionService(f"{kind}.db")
    session = await service.create_session(**APP, session_id=kind)
    await service.append_event(session, Event(author="user"))
    return service, session


async def locked(kind):
    service, session = await create(kind)
    with closing(sqlite3.connect(f"{kind}.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        await service.append_event(session, Event(author="user"))


async def locked_database(kind):
    service = DatabaseSessionService(f"sqlite+aiosqlite:///{kind}.db", connect_args={"timeout": 0.1})
    session = await service.create_session(**APP, session_id=kind)
    with closing(sqlite3.connect(f"{kind}.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        try:
            await service.append_event(session, Event(author="user"))
        finally:
            await service.close()


async def damaged_event(kind):
    service, _session = await create(kind)
    execute(f"{kind}.db", "UPDATE events SET event_data = '{\"half'")
    await service.get_session(**APP, session_id=kind)


async def damaged_state(kind):
    service, _session = await create(kind)
    execute(f"{kind}.db", "UPDATE sessions SET state = '{\"half'")
    await service.get_session(**APP, session_id=kind)


async def damaged_database(kind):
    service = DatabaseSessionService(f"sqlite+aiosqlite:///{kind}.db")
    await service.create_session(**APP, session_id=kind)
    execute(f"{kind}.db", "UPDATE sessions SET state = '{\"half'")
    try:
        await service.get_session(**APP, session_id=kind)
    finally:
        await service.close()


async def stale(kind):
    service, session = await create(kind)
    old = session.model_copy(update={"last_update_time": 1.0})
    await service.append_event(old, Event(author="user"))


async def exists(kind):
    service, _session = await create(kind)
    await service.create_session(**APP, session_id=kind)


async def missing(kind):
    service, session = await create(kind)
    await service.delete_session(**APP, session_id=kind)
    await service.append_event(session, Event(author="user"))


async def unserializable(kind):
    service, session = await create(kind)
    event = Event(author="user")
    event.custom_metadata = {"value": object()}
    await service.append_event(session, event)


KINDS = (locked, locked_database, damaged_event, damaged_state, damaged_database, stale, exists, missing, unserializable)


async def attempt(kind):
    try:
        await kind(kind.__name__)
    except Exception as error:
        return type(error).__name__


async def main():
    results = await asyncio.gather(*map(attempt, KINDS))  # at once, because locks are waited for
    print(json.dumps(dict(zip([kind.__name__ for kind in KINDS], results, strict=True))))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    asyncio.run(main())
