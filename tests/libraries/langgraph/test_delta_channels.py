"""A channel that stores only its changes is read from the checkpoints before, with a method of its own."""

from __future__ import annotations

import operator
import sqlite3
import weakref
from contextlib import closing
from typing import Annotated, TypedDict

import pytest
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph

from ckpt_observe.instrument.langgraph import LangGraphInstrumentor
from ckpt_observe.record.guard import faults
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries
CONFIG = {"configurable": {"thread_id": "thread-1"}}
RUNS = 3


class State(TypedDict):
    log: Annotated[list, DeltaChannel(lambda state, writes: sum(writes, state))]
    text: Annotated[str, operator.add]


@pytest.fixture(autouse=True)
def instrumentor(recording):
    instrumentor = LangGraphInstrumentor()
    instrumentor.instrument()
    faults.clear()
    yield instrumentor
    instrumentor.uninstrument()
    assert not faults


@pytest.fixture(params=["memory", "sqlite"])
def saver(request):
    if request.param == "memory":
        yield InMemorySaver()
        return
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        yield SqliteSaver(connection)


def test_history_of_a_channel_is_a_load(recording, saver):
    """The load of the history says how many writes it read, and of which checkpoint. It belongs to the run."""
    agent = StateGraph(State).add_node("node", lambda state: {"log": ["x" * 100], "text": "x"}).add_edge(START, "node")
    agent = agent.compile(saver, name="delta")
    for _ in range(RUNS):
        state = agent.invoke({"log": ["input"], "text": ""}, CONFIG)
    assert len(state["log"]) == 2 * RUNS
    spans = recording.spans()
    loads = [span for span in spans if span.name == "checkpoint.load"]
    histories = [span for span in loads if names.COUNT in span.attributes]
    assert len(loads) == RUNS + len(histories)
    assert [span.attributes[names.COUNT] for span in histories] == [2 * runs for runs in range(1, RUNS)]
    saves = {span.attributes[names.ID] for span in spans if span.name == "checkpoint.save"}
    tasks = {span.span_id for span in spans if span.name == "task delta"}
    for span in histories:
        assert (span.attributes[names.TASK_ID], span.parent_span_id in tasks, span.attributes[names.ID] in saves) == (
            "thread-1",
            True,
            True,
        )
        assert span.attributes[names.SIZE_SERIALIZED] > 100


class Value:
    """A value that has weak references."""


class KeepingSerializer:
    """Makes new values, and remembers which of them exist."""

    def __init__(self):
        self.values = weakref.WeakSet()

    def dumps_typed(self, obj):
        return "msgpack", b"\x80"

    def loads_typed(self, data):
        value = Value()
        self.values.add(value)
        return value


def test_history_is_not_kept(recording):
    """A history may be many checkpoints: what the library reads and drops again is not kept for a comparison."""
    serializer = KeepingSerializer()

    class HistorySaver(InMemorySaver):
        def get_delta_channel_history(self, *, config, channels):
            for _ in range(10):
                self.serde.loads_typed(("msgpack", b"\x80"))
            alive.append(len(serializer.values))
            return {}

    alive = []
    HistorySaver(serde=serializer).get_delta_channel_history(config=CONFIG, channels=["log"])
    assert alive[0] <= 1
