"""Provokes real failures of storages. Prints the type of the exception of each. The checkpoint's id is the kind of failure."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

from agent_framework import FileCheckpointStorage, InMemoryCheckpointStorage, WorkflowCheckpoint


class Unregistered:
    """A type that the storage does not allow."""


def checkpoint(kind, **state):
    return WorkflowCheckpoint("failing", "hash", checkpoint_id=kind, state=state)


async def unserializable(kind):
    await FileCheckpointStorage(kind).save(checkpoint(kind, value={"lock": threading.Lock()}))


async def unserializable_memory(kind):
    await InMemoryCheckpointStorage().save(checkpoint(kind, value=threading.Lock()))


async def blocked_type(kind):
    await FileCheckpointStorage(kind).save(checkpoint(kind, value=Unregistered()))


async def not_json(kind):
    await write(kind, b'{"half')


async def not_text(kind):
    await write(kind, b"\xff\xfe\xfd")


async def other_fields(kind):
    await write(kind, b'{"something": "else"}')


async def write(kind, content):
    storage = FileCheckpointStorage(kind)
    await storage.save(checkpoint(kind))
    (Path(kind) / f"{kind}.json").write_bytes(content)
    await storage.load(kind)


async def missing(kind):
    await FileCheckpointStorage(kind).load(kind)


async def missing_memory(kind):
    await InMemoryCheckpointStorage().load(kind)


async def no_directory(kind):
    storage = FileCheckpointStorage(kind)
    await asyncio.to_thread(Path(kind).rmdir)
    await storage.save(checkpoint(kind))


async def outside(kind):
    await FileCheckpointStorage(kind).load("../outside")


KINDS = (
    unserializable, unserializable_memory, blocked_type, not_json, not_text, other_fields, missing, missing_memory, no_directory, outside,
)  # fmt: skip


async def attempt(kind):
    try:
        await kind(kind.__name__)
    except Exception as error:
        return type(error).__name__


async def main():
    print(json.dumps({kind.__name__: await attempt(kind) for kind in KINDS}))


if __name__ == "__main__":
    asyncio.run(main())
