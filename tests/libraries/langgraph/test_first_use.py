"""The first call of a saver of SQLite creates its tables. That is a write, not a wait for somebody else."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver

from ckpt_observe.instrument.langgraph import LangGraphInstrumentor
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries
CONFIG = {"configurable": {"thread_id": "thread-1", "checkpoint_ns": ""}}


@pytest.fixture(autouse=True)
def instrumentor(recording):
    instrumentor = LangGraphInstrumentor()
    instrumentor.instrument()
    yield instrumentor
    instrumentor.uninstrument()


def phases(recording):
    return [span.attributes[names.PHASE] for span in recording.spans() if names.PHASE in span.attributes]


@pytest.mark.parametrize("read", [lambda saver: saver.get_tuple(CONFIG), lambda saver: list(saver.list(CONFIG))], ids=["load", "list"])
def test_first_read_creates_the_tables(recording, read):
    """Later reads wait for the lock, and write nothing."""
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        saver = SqliteSaver(connection)
        read(saver)
        assert phases(recording) == ["write", "read"]
        read(saver)
        assert phases(recording) == ["write", "read", "wait", "read"]


def test_tables_that_cannot_be_created(recording):
    """The read failed because it had to write."""
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        connection.execute("PRAGMA query_only = true")
        with pytest.raises(sqlite3.OperationalError):
            SqliteSaver(connection).get_tuple(CONFIG)
    [load] = [span for span in recording.spans() if span.name == "checkpoint.load"]
    assert (load.attributes[names.ERROR_CODE], load.attributes[names.ERROR_PHASE]) == ("storage.read_only", "write")
