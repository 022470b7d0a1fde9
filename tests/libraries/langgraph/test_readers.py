"""The readers look into databases that the savers of the installed LangGraph wrote. LangGraph itself and SQL are the oracles."""

from __future__ import annotations

import operator
from contextlib import contextmanager
from typing import Annotated, TypedDict

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from ckpt_observe import readers
from ckpt_observe.errors import CheckpointNotFoundError, CompatibilityError

pytestmark = pytest.mark.libraries


class State(TypedDict):
    messages: Annotated[list, operator.add]
    document: dict
    count: int


def graph(saver):
    builder = StateGraph(State)
    builder.add_node("answer", lambda state: {"document": {"pages": ["x" * 1000] * state["count"]}})
    builder.add_node("write", lambda state: {"messages": [("human", "a question")]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", "write")
    builder.add_edge("write", END)
    return builder.compile(checkpointer=saver)


@contextmanager
def open_saver(database):
    if database.is_sqlite:
        with SqliteSaver.from_conn_string(database.path) as saver:
            yield saver
    else:
        from langgraph.checkpoint.postgres import PostgresSaver  # noqa: PLC0415

        with PostgresSaver.from_conn_string(database.path) as saver:
            saver.setup()
            yield saver


def run(saver):
    for thread, pages in (("small", 1), ("large", 30)):
        state = {"messages": [], "count": pages}
        graph(saver).invoke(state, {"configurable": {"thread_id": thread}})


def check(contents):
    assert sum(entry.size for entry in contents.entries) + contents.other_size == contents.size
    for breakdown in contents.breakdowns:
        assert sum(entry.size for entry in breakdown.entries) + breakdown.other_size == contents.size
        assert breakdown.other_size >= 0
    assert contents.other_size >= 0


def total_size(database):
    if database.is_sqlite:
        return database.execute("SELECT sum(length(checkpoint)) FROM checkpoints")[0][0]
    return (
        database.execute("SELECT sum(octet_length(checkpoint::text)) FROM checkpoints")[0][0]
        + database.execute("SELECT coalesce(sum(octet_length(blob)), 0) FROM checkpoint_blobs")[0][0]
    )


def test_channels_threads_and_steps(database):
    """The channel that the run made large comes first, and channels plus other bytes are exactly the bytes in the database."""
    with open_saver(database) as saver:
        run(saver)
        while_open = readers.read(database.path)
    contents = readers.read(database.path)
    check(contents)
    assert contents.entries == while_open.entries
    assert contents.size == total_size(database)
    assert contents.entries[0].name == "document"
    assert [entry.name for entry in contents.breakdown("thread").entries] == ["large", "small"]
    steps = {entry.name: entry.items for entry in contents.breakdown("step").entries}
    assert steps == {"-1": 2, "0": 2, "1": 2, "2": 2}
    assert 0 < contents.prunable_size < contents.size + contents.metadata["metadata_size"] + contents.metadata["writes_size"]
    if database.is_sqlite:  # the second checkpoint with the document stores it again; PostgreSQL stores it once
        assert contents.repeated_size > 30_000
    else:
        assert contents.repeated_size < 30_000


def test_each_checkpoint(database):
    """Keys and bytes of each channel are those that LangGraph's own serializer gives for the loaded state."""
    with open_saver(database) as saver:
        run(saver)
        history = list(saver.list({"configurable": {"thread_id": "large"}}))
        thread = readers.read(database.path, task="large", depth=2)
        check(thread)
        listed = {entry.name: {child.name for child in entry.children} for entry in thread.breakdown("checkpoint").entries}
        assert listed == {item.config["configurable"]["checkpoint_id"]: set(item.checkpoint["channel_values"]) for item in history}
        digests = [child.digest for entry in thread.breakdown("checkpoint").entries for child in entry.children if child.name == "document"]
        assert len(digests) == 2
        assert len(set(digests)) == 1
        for item in history:
            id = item.config["configurable"]["checkpoint_id"]
            contents = readers.read(database.path, task="large", checkpoint=id)
            check(contents)
            values = item.checkpoint["channel_values"]
            assert {entry.name for entry in contents.entries} == set(values)
            assert contents.metadata["step"] == item.metadata["step"]
            if database.is_sqlite:
                sizes = {name: len(saver.serde.dumps_typed(value)[1]) for name, value in values.items() if value is not None}
                assert {entry.name: entry.size for entry in contents.entries if entry.name in sizes} == sizes
    newest = readers.read(database.path, task="large", checkpoint="latest", depth=3)
    document = next(entry for entry in newest.entries if entry.name == "document")
    assert document.children[0].name == "pages"
    assert document.children[0].items == 30
    for reference in ("step:99", "none"):
        with pytest.raises(CheckpointNotFoundError):
            readers.read(database.path, task="large", checkpoint=reference)
    with pytest.raises(CheckpointNotFoundError):
        readers.read(database.path, task="none")


def test_an_empty_database_of_postgresql_stays_empty(database):
    """Looking into a database without checkpoints creates nothing in it."""
    if database.is_sqlite:
        with pytest.raises(CheckpointNotFoundError):
            readers.read(database.path)
        return
    with pytest.raises(CompatibilityError, match="checkpoint_blobs"):
        readers.read(database.path)
    assert database.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]
