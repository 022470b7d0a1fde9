"""The savers of Redis: what they store in a Redis in memory is the oracle; and on a server without its modules each operation fails."""

from __future__ import annotations

import asyncio
from collections import Counter

import drawn_graph
import fakeredis
import pytest
import stores
from databases import compare
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.redis import RedisSaver
from langgraph.checkpoint.redis.aio import AsyncRedisSaver
from observation import Spans
from searchable_redis import AsyncSearchableRedis, SearchableRedis

from ckpt_observe.instrument.langgraph import LangGraphInstrumentor
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries
CONTENT = "what the state contains"
CONFIG = {"configurable": {"thread_id": "thread-1", "checkpoint_ns": ""}}
CHECKPOINT = {**empty_checkpoint(), "channel_values": {"text": CONTENT}, "channel_versions": {"text": "1"}}
MISSING_MODULE = ("configuration.unsupported", False)
EMPTY = "__empty__"
"""What the savers store instead of an empty text."""


@pytest.fixture
def instrumentor(recording):
    instrumentor = LangGraphInstrumentor()
    instrumentor.instrument()
    yield instrumentor
    instrumentor.uninstrument()


class Documents:
    """What is stored, in the form of `databases.Database`."""

    is_sqlite = False

    def __init__(self, server):
        self._client = SearchableRedis(server=server)

    def checkpoints(self):
        rows = self._rows("checkpoint", "thread_id", "checkpoint_ns", "checkpoint_id", "parent_checkpoint_id")
        return Counter((*row, parent or None) for *row, parent in rows)

    def writes(self):
        return set(self._rows("checkpoint_write", "thread_id", "checkpoint_ns", "checkpoint_id", "task_id"))

    def _rows(self, index, *fields):
        documents = [self._client.json().get(key.decode()) for key in self._client.keys(f"{index}:*")]
        return [tuple("" if document[field] == EMPTY else document[field] for field in fields) for document in documents]


def run(graph, server):
    """Run the graph; return how many runs it took and the length of the history."""
    saver = RedisSaver(redis_client=SearchableRedis(server=server))
    saver.setup()
    _, runs = drawn_graph.run(graph.compile(checkpointer=saver, name="drawn"), CONFIG)
    return runs, len(list(saver.list(CONFIG)))


def run_async(graph, server):
    async def run():
        saver = AsyncRedisSaver(redis_client=AsyncSearchableRedis(server=server))
        await saver.asetup()
        app = graph.compile(checkpointer=saver, name="drawn")
        _, runs = await drawn_graph.run_async(
            app, CONFIG, durability="sync"
        )  # fakeredis cannot merge into a document that does not exist yet
        return runs, len([item async for item in saver.alist(CONFIG)])

    return asyncio.run(run())


@pytest.mark.parametrize("run", [run, run_async])
def test_documents_and_spans_agree(recording, instrumentor, seed, run):
    """One save per document of a checkpoint, and appends for exactly the tasks that have documents of writes. Control: without one, it fails."""
    server = fakeredis.FakeServer()
    runs, history = run(drawn_graph.draw(seed)[1], server)
    spans, documents = Spans(recording.spans()), Documents(server)
    compare(documents, spans)
    assert documents.checkpoints()
    spans.check_traces()
    assert sorted(span.name for span in spans.roots()) == ["checkpoint.list", *["task drawn"] * runs]
    assert spans.operation("list").attributes[names.COUNT] == history == documents.checkpoints().total()
    assert {(span.attributes[names.STORE], span.attributes[names.OUTCOME]) for span in spans.operations()} == {("redis", "ok")}
    for span in spans.operations("save", "append"):
        assert span.attributes[names.SIZE_SERIALIZED] > 0
    client = SearchableRedis(server=server)
    for index in ("checkpoint", "checkpoint_write"):
        client.delete(client.keys(f"{index}:*")[0])
        with pytest.raises(AssertionError):
            compare(documents, spans)


def test_deleted_thread(recording, instrumentor):
    """The delete of a thread and the load that finds nothing after it."""
    saver = RedisSaver(redis_client=SearchableRedis())
    saver.setup()
    saver.put(CONFIG, empty_checkpoint(), {"source": "loop", "step": 1}, {})
    saver.delete_thread("thread-1")
    assert saver.get_tuple(CONFIG) is None
    spans = Spans(recording.spans())
    assert [span.attributes[names.OPERATION] for span in spans.operations()] == ["save", "delete", "load"]
    assert {span.attributes[names.OUTCOME] for span in spans.operations()} == {"ok"}
    assert spans.operation("load").attributes[names.EXISTS] is False


def fail_without_modules(saver):
    with pytest.raises(Exception, match=r"JSON\.SET"):
        saver.put(CONFIG, CHECKPOINT, {"source": "loop", "step": 1}, {"text": "1"})
    parent = {"configurable": {**CONFIG["configurable"], "checkpoint_id": CHECKPOINT["id"]}}
    with pytest.raises(Exception, match=r"JSON\.SET"):
        saver.put_writes(parent, [("text", CONTENT)], "task")
    assert saver.get_tuple(CONFIG) is None
    with pytest.raises(Exception, match=r"FT\.SEARCH"):
        saver.delete_thread("thread-1")


def test_server_without_modules(recording, instrumentor, tmp_path):
    """Each operation is one span that says what is wrong, with its IDs and size, and without the command that Redis quotes."""
    with stores.redis(tmp_path) as (url, _), RedisSaver.from_conn_string(url) as saver:
        fail_without_modules(saver)
    spans = [span for span in recording.spans() if names.OPERATION in span.attributes]
    assert [span.attributes[names.OPERATION] for span in spans] == ["save", "append", "load", "delete"]
    save, append, load, delete = (span.attributes for span in spans)
    for attributes in (save, append, load, delete):
        assert [attributes[name] for name in (names.STORE, names.SAVER, names.TASK_ID)] == ["redis", "RedisSaver", "thread-1"]
    for attributes in (save, append, delete):
        assert (attributes[names.ERROR_CODE], attributes[names.ERROR_RETRYABLE]) == MISSING_MODULE
    assert save[names.ID] == append[names.ID] == CHECKPOINT["id"]
    assert min(save[names.SIZE_SERIALIZED], append[names.SIZE_SERIALIZED]) > len(CONTENT)
    assert load[names.EXISTS] is False
    messages = [event.attributes["exception.message"] for span in spans for event in span.events]
    assert messages == [
        "Failed to load data: Command # 1 of pipeline caused error: unknown command 'JSON.SET'",
        "unknown command 'JSON.SET'",
        "Error while searching: unknown command 'FT.SEARCH'",
    ]
