"""Runs LangGraph's conformance suite on a saver and prints its report: `conformance.py SAVER_URL`. `own:` is a saver of this file."""

from __future__ import annotations

import asyncio
import json
import sys

import savers
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver


class OwnSaver(BaseCheckpointSaver):
    """Hands everything on to another saver, and has none of the optional methods."""

    def __init__(self):
        super().__init__()
        self.inner = InMemorySaver()

    async def aget_tuple(self, *args, **kwargs):
        return await self.inner.aget_tuple(*args, **kwargs)

    async def alist(self, *args, **kwargs):
        async for item in self.inner.alist(*args, **kwargs):
            yield item

    async def aput(self, *args, **kwargs):
        return await self.inner.aput(*args, **kwargs)

    async def aput_writes(self, *args, **kwargs):
        await self.inner.aput_writes(*args, **kwargs)

    async def adelete_thread(self, thread_id):
        await self.inner.adelete_thread(thread_id)

    def get_next_version(self, current, channel):
        return self.inner.get_next_version(current, channel)


@checkpointer_test("saver")
async def saver():
    if sys.argv[1] == "own:":
        yield OwnSaver()
        return
    async with savers.open_async_saver(sys.argv[1]) as saver:
        yield saver


if __name__ == "__main__":
    if "wrap_inherited" in sys.argv:
        InMemorySaver.aprune = lambda self, *args, **kwargs: super(InMemorySaver, self).aprune(*args, **kwargs)
    print(json.dumps(asyncio.run(validate(saver)).to_dict()))
