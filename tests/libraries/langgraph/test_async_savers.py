"""What is particular to asynchronous savers: the first call creates the tables, and tasks wait for each other at a lock."""

from __future__ import annotations

import asyncio

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from ckpt_observe.instrument.langgraph import LangGraphInstrumentor
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.events import PHASE_CODES

pytestmark = pytest.mark.libraries
CONFIG = {"configurable": {"thread_id": "thread-1", "checkpoint_ns": ""}}


@pytest.fixture
def instrumentor(recording):
    instrumentor = LangGraphInstrumentor()
    instrumentor.instrument()
    yield instrumentor
    instrumentor.uninstrument()


def put(saver):
    return saver.aput(CONFIG, {**empty_checkpoint(), "channel_values": {}}, {"step": 1, "source": "loop"}, {})


def phases(recording, operation):
    [span] = [span for span in recording.spans() if span.name == f"checkpoint.{operation}"]
    return {each.attributes[names.PHASE]: each for each in recording.spans() if each.parent_span_id == span.span_id}


def test_first_call_creates_the_tables(recording, instrumentor):
    """The saver finds out by an error whether a column exists. That is no failure: no span of the operation has one."""

    async def load():
        async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
            return await saver.aget_tuple(CONFIG)

    assert asyncio.run(load()) is None
    assert [span.name for span in recording.spans() if span.status == "error" or span.events] == []
    assert {"wait", "read"} <= phases(recording, "load").keys()


def running_phases(page):
    """The codes of phases that have no end mark."""
    return [mark & 0xFF for number, mark in page.marks.items() if number % 2 == 0 and not page.marks.get(number + 1)]


def test_wait_for_the_lock(recording, instrumentor):
    """A save that waits until another task releases the saver's lock is in the phase `wait` meanwhile."""

    async def save():
        async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
            await put(saver)
            recording.pages.clear()
            async with saver.lock:
                task = asyncio.create_task(put(saver))
                await asyncio.sleep(0)  # it runs until it waits for the lock
                running = running_phases(recording.pages[0])
            await task
            return running

    assert asyncio.run(save()) == [PHASE_CODES["wait"]]
    assert {"wait", "serialize", "write", "commit"} <= phases(recording, "save").keys()


def test_lock_is_ordinary_again(recording):
    """The lock looks like any other meanwhile. Without the instrumentor, it is the one that the saver was created with, and works."""
    instrumentor = LangGraphInstrumentor()
    instrumentor.instrument()

    async def save():
        async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
            await put(saver)
            observed = type(saver.lock)
            assert repr(saver.lock).startswith("<asyncio.locks.Lock object")
            instrumentor.uninstrument()
            await put(saver)
            return observed, type(saver.lock), saver.lock.locked()

    observed, lock, is_locked = asyncio.run(save())
    assert issubclass(observed, asyncio.Lock) and observed is not asyncio.Lock
    assert (lock, is_locked) == (asyncio.Lock, False)
