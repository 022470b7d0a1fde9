"""Describes what a program can notice of being observed: `host_report.py [damaged]` prints a report by subject.

`damaged` is the control: before each subject, the program does to itself what a careless instrumentor would do.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import json
import os
import pickle
import random
import re
import sqlite3
import sys
import tempfile
import threading
import traceback
from contextlib import closing
from typing import TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.pregel import Pregel

CLASSES = [BaseCheckpointSaver, InMemorySaver, SqliteSaver, AsyncSqliteSaver, JsonPlusSerializer, Pregel]
METHODS = [
    *("put", "put_writes", "get_tuple", "list", "delete_thread", "aput", "aput_writes", "aget_tuple", "alist", "adelete_thread"),
    *("dumps_typed", "loads_typed", "invoke", "stream", "ainvoke", "astream", "cursor"),
]
CONFIG = {"configurable": {"thread_id": "host", "checkpoint_ns": ""}}


class State(TypedDict):
    text: str
    lock: object


def build(saver, update):
    builder = StateGraph(State)
    builder.add_node("node", lambda state: update)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile(checkpointer=saver)


def results(connection):
    """What the saver's methods return, and whether it is the caller's own object where the library returns that."""
    saver, checkpoint = SqliteSaver(connection), empty_checkpoint()
    checkpoint["channel_values"]["text"] = "x"
    config = saver.put(CONFIG, checkpoint, {"step": 1, "source": "loop"}, {})
    writes = saver.put_writes(config, [("text", "y")], "task", "")
    loaded, listing = saver.get_tuple(CONFIG), saver.list(CONFIG)
    return [
        asyncio.run(async_results()),
        config["configurable"]["checkpoint_id"] == checkpoint["id"],
        sorted(config["configurable"]),
        writes,
        type(loaded).__name__,
        loaded.checkpoint == checkpoint,
        loaded.pending_writes,
        type(listing).__name__,
        [type(item).__name__ for item in listing],
        saver.delete_thread("host"),
        saver.get_tuple(CONFIG),
        build(InMemorySaver(), {"text": "z"}).invoke({"text": ""}, CONFIG),
    ]


async def async_results():
    checkpoint = empty_checkpoint()
    async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
        config = await saver.aput(CONFIG, checkpoint, {"step": 1, "source": "loop"}, {})
        writes = await saver.aput_writes(config, [("text", "y")], "task", "")
        loaded, listing = await saver.aget_tuple(CONFIG), saver.alist(CONFIG)
        return [
            config["configurable"]["checkpoint_id"] == checkpoint["id"],
            writes,
            loaded.checkpoint == checkpoint,
            loaded.pending_writes,
            [inspect.isawaitable(listing), type(listing).__name__],
            [type(item).__name__ async for item in listing],
            isinstance(saver.lock, asyncio.Lock),
            saver.lock.locked(),
            await saver.adelete_thread("host"),
            await saver.aget_tuple(CONFIG),
            await build(saver, {"text": "z"}).ainvoke({"text": ""}, CONFIG),
        ]


async def async_exceptions(call):
    async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
        await saver.setup()
        await call(saver)


def exceptions(connection):
    """Type, message, chain and frames of what the program catches, except the frames of our wrappers."""

    def call(function):
        try:
            function()
        except Exception as error:
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__) if "ckpt_observe/instrument" not in frame.filename]
            chain = [type(cause).__name__ for cause in (error.__cause__, error.__context__)]
            return type(error).__name__, str(error), chain, frames
        return None

    return [
        call(lambda: SqliteSaver(connection).put({}, {}, {}, {})),
        call(lambda: SqliteSaver(connection).put()),
        call(lambda: SqliteSaver(connection).get_tuple(None)),
        call(lambda: asyncio.run(async_exceptions(lambda saver: saver.aput({}, {}, {}, {})))),
        call(lambda: asyncio.run(async_exceptions(lambda saver: saver.aget_tuple(None)))),
        call(lambda: asyncio.run(SqliteSaver(connection).aget_tuple(CONFIG))),
        call(lambda: build(InMemorySaver(), {"lock": threading.Lock()}).invoke({"text": ""}, CONFIG)),
        call(lambda: build(InMemorySaver(), {"unknown": 1}).invoke({"unknown": ""}, {})),
    ]


def signatures(connection):
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    return [
        (owner.__name__, name, str(inspect.signature(method)), method.__name__, method.__qualname__, [kind(method) for kind in kinds])
        for owner in CLASSES
        for name in METHODS
        if (method := getattr(owner, name, None)) is not None
    ]


def pickling(connection):
    """What can be pickled, and comes back as the same object."""

    def same(value):
        try:
            return pickle.loads(pickle.dumps(value)) is value
        except Exception as error:
            return type(error).__name__

    values = [*CLASSES, *(getattr(owner, name) for owner in CLASSES for name in METHODS if hasattr(owner, name))]
    return [(getattr(value, "__qualname__", ""), same(value)) for value in values]


def environment(connection):
    return sorted((name, value) for name, value in os.environ.items() if not name.startswith(("CKPT_OBSERVE", "PYTEST_")))


def threads(connection):
    """Threads that remain after the work, except ours, which are named."""
    return sorted(thread.name for thread in threading.enumerate() if not thread.name.startswith("ckpt-observe"))


def descriptors(connection):
    """Open files, except those in our own directories."""
    ours = (os.environ["CKPT_OBSERVE_DIR"], os.environ["CKPT_OBSERVE_PAGES_DIR"])
    paths = []
    for number in os.listdir("/proc/self/fd"):
        try:
            paths.append(re.sub(r"\d+", "", os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    return sorted(path for path in paths if not path.startswith(tuple(re.sub(r"\d+", "", place) for place in ours)))


def random_state(connection):
    """The state of `random` after seeded work: also the library draws from it, always as often."""
    random.seed(7)
    results(connection)
    return hashlib.sha256(repr(random.getstate()).encode()).hexdigest()


SUBJECTS = (results, exceptions, signatures, pickling, random_state, environment, threads, descriptors)


def break_results():
    original = SqliteSaver.get_tuple
    SqliteSaver.get_tuple = functools.wraps(original)(
        lambda self, config: (loaded := original(self, config)) and loaded._replace(pending_writes=[])
    )


def break_exceptions():
    original = SqliteSaver.put

    @functools.wraps(original)
    def put(self, *args, **kwargs):
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            raise RuntimeError("save failed") from error

    SqliteSaver.put = put


def break_signatures():
    original = SqliteSaver.put

    def put(self, *args, **kwargs):
        return original(self, *args, **kwargs)

    put.__qualname__ = original.__qualname__
    SqliteSaver.put = put


def break_pickling():
    class Proxy:
        """Is called like the function and describes itself so, but has no name under which pickle would find it."""

        def __init__(self, function):
            functools.update_wrapper(self, function)
            self.__signature__ = inspect.signature(function)

        def __get__(self, instance, owner=None):
            return self if instance is None else functools.partial(self.__wrapped__, instance)

        def __call__(self, *args, **kwargs):
            return self.__wrapped__(*args, **kwargs)

    SqliteSaver.put = Proxy(SqliteSaver.put)


def break_random_state():
    original = SqliteSaver.put

    @functools.wraps(original)
    def put(self, *args, **kwargs):
        random.random()
        return original(self, *args, **kwargs)

    SqliteSaver.put = put


def break_environment():
    os.environ["LEFT_BEHIND"] = "1"


def break_threads():
    threading.Thread(target=threading.Event().wait, name="left-behind", daemon=True).start()


def break_descriptors():
    os.open(tempfile.gettempdir(), os.O_RDONLY)


def main(*damage):
    originals = SqliteSaver.put, SqliteSaver.get_tuple
    report = {}
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        for subject in SUBJECTS:
            if damage:
                globals()[f"break_{subject.__name__}"]()
            report[subject.__name__] = subject(connection)
            if damage:
                SqliteSaver.put, SqliteSaver.get_tuple = originals
    print(json.dumps(report, default=str))


if __name__ == "__main__":
    main(*sys.argv[1:])
