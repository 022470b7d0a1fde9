"""Savers that the program defines itself, after it is observed: `late_savers.py KIND PATH`. Each stores in SQLite, which is the oracle."""

from __future__ import annotations

import asyncio
import json
import operator
import pickle
import sqlite3
import sys
from contextlib import AsyncExitStack, closing
from typing import Annotated, TypedDict

import aiosqlite
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph


def in_function(connection):
    class LocalSaver(SqliteSaver):
        def put(self, config, checkpoint, metadata, new_versions):
            return super().put(config, checkpoint, metadata, new_versions)

    return LocalSaver(connection)


def any_arguments(connection):
    class AnyArgumentsSaver(SqliteSaver):
        def put(self, *args, **kwargs):
            return super().put(*args, **kwargs)

        def put_writes(self, *args, **kwargs):
            return super().put_writes(*args, **kwargs)

        def get_tuple(self, *args, **kwargs):
            return super().get_tuple(*args, **kwargs)

        def list(self, *args, **kwargs):
            yield from super().list(*args, **kwargs)

        def delete_thread(self, *args, **kwargs):
            return super().delete_thread(*args, **kwargs)

    return AnyArgumentsSaver(connection)


def two_levels(connection):
    class ParentSaver(SqliteSaver):
        def put(self, config, checkpoint, metadata, new_versions):
            return super().put(config=config, checkpoint=checkpoint, metadata=metadata, new_versions=new_versions)

        def get_tuple(self, config):
            return super().get_tuple(config)

    class ChildSaver(ParentSaver):
        def put(self, config, checkpoint, metadata, new_versions):
            return super().put(config, checkpoint, metadata, new_versions)

        def get_tuple(self, config):
            return super().get_tuple(config)

    return ChildSaver(connection)


class Delegating:
    """The methods of a saver that hands on to another one, without the base class of savers."""

    def __init__(self, inner):
        BaseCheckpointSaver.__init__(self)
        self.inner = inner

    def put(self, config, checkpoint, metadata, new_versions):
        return self.inner.put(config, checkpoint, metadata, new_versions)

    def put_writes(self, config, writes, task_id, task_path=""):
        return self.inner.put_writes(config, writes, task_id, task_path)

    def get_tuple(self, config):
        return self.inner.get_tuple(config)

    def list(self, config, **kwargs):
        yield from self.inner.list(config, **kwargs)

    def delete_thread(self, thread_id):
        return self.inner.delete_thread(thread_id)

    def get_next_version(self, current, channel):
        return self.inner.get_next_version(current, channel)


METHODS = {name: method for name, method in vars(Delegating).items() if callable(method)}


def delegation(connection):
    return type("DelegatingSaver", (BaseCheckpointSaver,), METHODS)(SqliteSaver(connection))


def mixin(connection):
    return type("MixinSaver", (Delegating, BaseCheckpointSaver), {})(SqliteSaver(connection))


def hidden_subclass(connection):
    class Hiding:
        def __init_subclass__(cls):
            """Let no other class know: `super().__init_subclass__` is not called."""

    return type("HiddenSaver", (Hiding, BaseCheckpointSaver), METHODS)(SqliteSaver(connection))


def returned_generator(connection):
    class ListingSaver(SqliteSaver):
        def list(self, config, **kwargs):
            return super().list(config, **kwargs)

    return ListingSaver(connection)


TENANT = "tenant/"


def other_thread_ids(connection):
    """Each tenant of a service has threads of its own, in one database."""

    def inner(config):
        return {**config, "configurable": {**config["configurable"], "thread_id": TENANT + config["configurable"]["thread_id"]}}

    def outer(config):
        return {**config, "configurable": {**config["configurable"], "thread_id": config["configurable"]["thread_id"].removeprefix(TENANT)}}

    class TenantSaver(SqliteSaver):
        def put(self, config, *args):
            return outer(super().put(inner(config), *args))

        def put_writes(self, config, writes, task_id, task_path=""):
            super().put_writes(inner(config), writes, task_id, task_path)

        def get_tuple(self, config):
            loaded = super().get_tuple(inner(config))
            return loaded and loaded._replace(config=outer(loaded.config))

        def list(self, config, **kwargs):
            for loaded in super().list(inner(config), **kwargs):
                yield loaded._replace(config=outer(loaded.config))

    return TenantSaver(connection)


def duck_typed_serde(connection):
    class PickleSerde:  # no base class: SerializerProtocol is a protocol
        def dumps_typed(self, obj):
            return "pickle", pickle.dumps(obj)

        def loads_typed(self, data):
            return pickle.loads(data[1])

    return SqliteSaver(connection, serde=PickleSerde())


def async_in_function(connection):
    class LocalAsyncSaver(AsyncSqliteSaver):
        async def aput(self, config, checkpoint, metadata, new_versions):
            return await super().aput(config, checkpoint, metadata, new_versions)

    return LocalAsyncSaver(connection)


def async_any_arguments(connection):
    class AnyArgumentsAsyncSaver(AsyncSqliteSaver):
        async def aput(self, *args, **kwargs):
            return await super().aput(*args, **kwargs)

        async def aput_writes(self, *args, **kwargs):
            return await super().aput_writes(*args, **kwargs)

        def aget_tuple(self, *args, **kwargs):  # hands on the coroutine
            return super().aget_tuple(*args, **kwargs)

        async def alist(self, *args, **kwargs):
            async for item in super().alist(*args, **kwargs):
                yield item

        async def adelete_thread(self, *args, **kwargs):
            return await super().adelete_thread(*args, **kwargs)

    return AnyArgumentsAsyncSaver(connection)


def async_delegation(connection):
    class DelegatingAsyncSaver(BaseCheckpointSaver):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        async def aput(self, config, checkpoint, metadata, new_versions):
            return await self.inner.aput(config, checkpoint, metadata, new_versions)

        async def aput_writes(self, config, writes, task_id, task_path=""):
            return await self.inner.aput_writes(config, writes, task_id, task_path)

        async def aget_tuple(self, config):
            return await self.inner.aget_tuple(config)

        async def alist(self, config, **kwargs):
            async for item in self.inner.alist(config, **kwargs):
                yield item

        async def adelete_thread(self, thread_id):
            return await self.inner.adelete_thread(thread_id)

        def get_next_version(self, current, channel):
            return self.inner.get_next_version(current, channel)

    return DelegatingAsyncSaver(AsyncSqliteSaver(connection))


def async_over_sync(connection):
    class ThreadSaver(SqliteSaver):
        """As programs do that have only a synchronous driver: another thread does the work."""

        async def aput(self, *args):
            return await asyncio.to_thread(self.put, *args)

        async def aput_writes(self, *args):
            return await asyncio.to_thread(self.put_writes, *args)

        async def aget_tuple(self, config):
            return await asyncio.to_thread(self.get_tuple, config)

        async def alist(self, *args, **kwargs):
            for item in await asyncio.to_thread(lambda: list(self.list(*args, **kwargs))):
                yield item

        async def adelete_thread(self, thread_id):
            await asyncio.to_thread(self.delete_thread, thread_id)

    return ThreadSaver(connection)


SYNC = (in_function, any_arguments, two_levels, delegation, mixin, hidden_subclass, returned_generator, duck_typed_serde, other_thread_ids)
ASYNC = (async_in_function, async_any_arguments, async_delegation, async_over_sync)
KINDS = {kind.__name__: kind for kind in SYNC + ASYNC}


class State(TypedDict):
    log: Annotated[list, operator.add]


def build(saver):
    builder = StateGraph(State)
    for name in ("left", "right"):
        builder.add_node(name, lambda state, name=name: {"log": [name * 100]})
        builder.add_edge(START, name)
        builder.add_edge(name, END)
    return builder.compile(checkpointer=saver, name="late")


CONFIG = {"configurable": {"thread_id": "late"}}


def run(kind, path):
    with closing(sqlite3.connect(path, check_same_thread=False)) as connection:
        saver = KINDS[kind](connection)
        app = build(saver)
        app.invoke({"log": []}, CONFIG)
        history = len(list(app.get_state_history(CONFIG)))
        saver.delete_thread("another")
    return {"history": history, "saver": type(saver).__name__}


async def run_async(kind, path):
    async with AsyncExitStack() as stack:
        if kind == "async_over_sync":
            connection = stack.enter_context(closing(sqlite3.connect(path, check_same_thread=False)))
        else:
            connection = await stack.enter_async_context(aiosqlite.connect(path))
        saver = KINDS[kind](connection)
        app = build(saver)
        await app.ainvoke({"log": []}, CONFIG)
        history = len([state async for state in app.aget_state_history(CONFIG)])
        await saver.adelete_thread("another")
    return {"history": history, "saver": type(saver).__name__}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run_async(*sys.argv[1:])) if KINDS[sys.argv[1]] in ASYNC else run(*sys.argv[1:])))
