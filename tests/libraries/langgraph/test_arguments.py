"""Unusual arguments of savers: the saver gets them as the host program passed them, and the operation is recorded."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import operator
import sqlite3
from contextlib import closing
from typing import Annotated, TypedDict

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from ckpt_observe.instrument import langgraph_state
from ckpt_observe.instrument.langgraph import LangGraphInstrumentor
from ckpt_observe.record.guard import faults
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries


@pytest.fixture(autouse=True)
def observed(recording):
    """LangGraph is observed, and our code does not fail."""
    instrumentor = LangGraphInstrumentor()
    instrumentor.instrument()
    faults.clear()
    yield
    instrumentor.uninstrument()
    assert not faults


def config(thread):
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": "1"}}


def put(saver, **values):
    versions = dict.fromkeys(values, "1")
    checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": versions}
    return saver.put(config("put"), checkpoint, {}, versions)


def span_of(recording, name):
    [span] = [span for span in recording.spans() if span.name == name]
    return span


class State(TypedDict):
    log: Annotated[list, operator.add]


def test_nodes_of_appends(recording):
    """An append names the node that it is from; it has none if LangGraph tells only the number of a `Send`."""
    builder = StateGraph(State)
    builder.add_node("plan, then send", lambda state: {"log": ["plan"]})
    builder.add_node("worker", lambda state: {"log": ["work"]})
    builder.add_edge(START, "plan, then send")
    builder.add_conditional_edges("plan, then send", lambda state: [Send("worker", {"log": []})] * 2, ["worker"])
    builder.compile(checkpointer=InMemorySaver()).invoke({"log": []}, {"configurable": {"thread_id": "1"}})
    nodes = [span.attributes.get(names.NODE) for span in recording.spans() if span.name == "checkpoint.append"]
    assert collections.Counter(nodes) == {START: 1, "plan, then send": 1, None: 2}


def test_function_in_a_node(recording):
    """The result of a function of the functional API is appended by the node that called it."""

    @task
    def double(value):
        return 2 * value

    @entrypoint(checkpointer=InMemorySaver())
    def workflow(value):
        return double(value).result()

    assert workflow.invoke(3, {"configurable": {"thread_id": "1"}}) == 6
    appends = [span for span in recording.spans() if span.name == "checkpoint.append"]
    assert appends
    assert {span.attributes.get(names.NODE) for span in appends} <= {"workflow", START}


@pytest.mark.parametrize("kind", [iter, list, tuple, collections.deque])
def test_writes_may_be_any_iterable(recording, kind):
    """The saver gets all writes, also those of an iterator, which can be read only once."""
    saver = InMemorySaver()
    saver.put_writes(config("writes"), kind([("__interrupt__", 1), ("b", 2)]), "task")
    assert len(saver.writes["writes", "", "1"]) == 2
    assert span_of(recording, "checkpoint.append").attributes.get(names.REASON) == (None if kind is iter else "interrupt")


def test_deleted_thread_is_marked(recording):
    """A delete of a thread has no id of a checkpoint, and says that all checkpoints of the thread are gone."""
    saver = InMemorySaver()
    saver.delete_thread("thread-1")
    attributes = span_of(recording, "checkpoint.delete").attributes
    assert (attributes[names.TASK_ID], attributes[names.WHOLE_TASK], names.ID in attributes) == ("thread-1", True, False)


def test_thread_ids_may_be_an_iterator(recording):
    """The saver prunes all threads."""

    class Saver(BaseCheckpointSaver):
        def prune(self, thread_ids, **_options):
            self.pruned = list(thread_ids)

    saver = Saver()
    saver.prune(iter(["a", "b"]))
    assert saver.pruned == ["a", "b"]


def test_checkpoint_without_channel_values(recording):
    """A save is recorded although its checkpoint has no state: the saver may keep that elsewhere."""

    class Saver(BaseCheckpointSaver):
        def put(self, config, checkpoint, metadata, new_versions):
            return config

    Saver().put(config("put"), {"id": "2"}, {}, {})
    assert span_of(recording, "checkpoint.save").attributes[names.ID] == "2"


def test_cursor_that_is_no_context_manager(recording):
    """The method `cursor` of the host program's own saver may return a plain cursor."""

    class Saver(BaseCheckpointSaver):
        def cursor(self):
            return self.connection.cursor()

        def get_tuple(self, config):
            cursor = self.cursor()
            cursor.execute("SELECT 1")
            self.rows = list(cursor)

    saver = Saver()
    saver.connection = sqlite3.connect(":memory:")
    saver.get_tuple(config("get"))
    saver.connection.close()
    assert saver.rows == [(1,)]


def test_path_in_a_dataclass_with_slots(recording):
    """The path of a value that cannot be serialized leads through fields without a `__dict__`."""

    @dataclasses.dataclass(slots=True)
    class Item:
        value: object

    with pytest.raises(TypeError):
        put(InMemorySaver(), items=[Item(1), Item(object())])
    assert span_of(recording, "checkpoint.save").attributes[names.ERROR_PATH] == "items[1].value"


def test_channels_with_the_same_value(recording):
    """Each of two channels has its size, although the serializer gets the same object twice."""
    value = ["x" * 1000]
    put(InMemorySaver(), first=value, second=value)
    attributes = span_of(recording, "checkpoint.save").attributes
    assert dict(zip(attributes[names.KEY_NAMES], attributes[names.KEY_SIZES], strict=True)) == {"first": 1004, "second": 1004}


@pytest.mark.parametrize(("sizes", "measured"), [([1000] * 41, [0, 20, 40]), ([1000, 1050, 1090, 1300, 1350, 900], [0, 3, 5])])
def test_channels_of_a_block_are_sampled(recording, monkeypatch, sizes, measured):
    """They are measured after 20 saves, or when the block is 10 % larger or smaller than when they were measured last. A span says so."""
    monkeypatch.setattr(langgraph_state, "_threads", {})
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as connection:
        saver = SqliteSaver(connection)
        for size in sizes:
            put(saver, text="x" * size)
    saves = [span.attributes for span in recording.spans() if span.name == "checkpoint.save"]
    assert [number for number, attributes in enumerate(saves) if names.KEY_SIZES in attributes] == measured
    for number, attributes in enumerate(saves):
        assert attributes.get(names.KEY_SIZES_SAMPLED) is (True if number in measured else None)
        assert attributes.get(names.KEY_SIZES) == ([sizes[number] + 3] if number in measured else None)


def test_same_thread_in_two_databases(recording):
    """The size of a channel that did not change is the one in this database, or unknown: thread IDs such as `1` are in each of them."""

    def save(saver, version, values, changed):
        checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": dict.fromkeys(values, version)}
        saver.put(config("twice"), checkpoint, {}, dict.fromkeys(changed, version))

    first, second = InMemorySaver(), InMemorySaver()
    save(first, "1.first", {"text": "x" * 10, "documents": ["x" * 10]}, ("text", "documents"))
    save(second, "1.second", {"text": "x" * 10, "documents": ["x" * 1000]}, ("text", "documents"))
    save(second, "1.second", {"text": "x" * 30, "documents": ["x" * 1000]}, ("text",))
    save(first, "1.first", {"text": "x" * 20, "documents": ["x" * 10]}, ("text",))
    saves = [span.attributes for span in recording.spans() if span.name == "checkpoint.save"]
    sizes = [dict(zip(attributes[names.KEY_NAMES], attributes[names.KEY_SIZES], strict=True)) for attributes in saves]
    assert sizes[2:] == [{"text": 31, "documents": 1004}, {"text": 21}]


def test_saver_that_tries_again(recording, tmp_path):
    """The size is that of the attempt that succeeded, not of all together."""

    class Saver(SqliteSaver):
        def put(self, *args, **kwargs):
            try:
                return super().put(*args, **kwargs)
            except sqlite3.OperationalError:
                other.rollback()
                return super().put(*args, **kwargs)

    with (
        closing(sqlite3.connect(tmp_path / "checkpoints.db", timeout=0)) as connection,
        closing(sqlite3.connect(tmp_path / "checkpoints.db")) as other,
    ):
        saver = Saver(connection)
        saver.setup()
        other.execute("BEGIN EXCLUSIVE")
        put(saver, text="x" * 1000)
        [[size]] = other.execute("SELECT length(checkpoint) FROM checkpoints").fetchall()
    save = span_of(recording, "checkpoint.save")
    assert (save.attributes[names.OUTCOME], save.attributes[names.SIZE_SERIALIZED]) == ("ok", size)
    [serialize] = [span for span in recording.spans() if span.attributes.get(names.PHASE) == "serialize"]
    assert serialize.attributes["checkpoint.phase.calls"] == 2


def test_search_in_a_large_state(recording, monkeypatch):
    """The search for the value that cannot be serialized ends after some bytes. It then names what contains the value."""
    values = {"harmless": ["x" * 1000], "documents": [["x" * 1000], ["y" * 1000], [object()]]}
    for limit, path in ((10_000, "documents[2][0]"), (1500, "documents")):
        monkeypatch.setattr(langgraph_state, "_MAX_SEARCHED", limit)
        with pytest.raises(TypeError):
            put(InMemorySaver(), **values)
        save = [span for span in recording.spans() if span.name == "checkpoint.save"][-1]
        assert save.attributes[names.ERROR_PATH] == path


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_methods_of_few_savers(recording, is_async):
    """Few savers have these methods. A call is one operation, also if the asynchronous twin calls the other."""

    class Saver(BaseCheckpointSaver):
        def copy_thread(self, source_thread_id, target_thread_id):
            pass

        def delete_for_runs(self, run_ids):
            pass

        def prune(self, thread_ids, *, strategy="keep_latest"):
            pass

        async def acopy_thread(self, source_thread_id, target_thread_id):
            self.copy_thread(source_thread_id, target_thread_id)

        async def adelete_for_runs(self, run_ids):
            self.delete_for_runs(run_ids)

        async def aprune(self, thread_ids, *, strategy="keep_latest"):
            self.prune(thread_ids, strategy=strategy)

    saver, calls = Saver(), (("copy_thread", "a", "b"), ("delete_for_runs", ["run"]), ("prune", ["a"]), ("prune", ["a", "b"]))
    for method, *arguments in calls:
        if is_async:
            asyncio.run(getattr(saver, f"a{method}")(*arguments))
        else:
            getattr(saver, method)(*arguments)
    columns = (names.OPERATION, names.TASK_ID, names.TARGET_TASK_ID)
    assert [tuple(span.attributes.get(name) for name in columns) for span in recording.spans()] == [
        ("copy", "a", "b"),
        ("delete", None, None),
        ("prune", "a", None),
        ("prune", None, None),
    ]


def test_encryption(recording):
    """Encryption has phases of its own, with the bytes before and after it. The cipher is any object with the methods of one."""

    class PaddingCipher:
        def encrypt(self, plaintext):
            return "padding", plaintext + bytes(16)

        def decrypt(self, ciphername, ciphertext):
            return ciphertext[:-16]

    saver = InMemorySaver(serde=EncryptedSerializer(PaddingCipher()))
    loaded = saver.get_tuple(put(saver, text="x" * 100))
    assert loaded.checkpoint["channel_values"] == {"text": "x" * 100}
    spans = recording.spans()
    for operation, phase in (("save", "encrypt"), ("load", "decrypt")):
        span = span_of(recording, f"checkpoint.{operation}")
        assert (span.attributes[names.FORMAT], span.attributes[names.CIPHER]) == ("msgpack", "padding")
        [part] = [each for each in spans if each.attributes.get(names.PHASE) == phase]
        calls, before, after = (part.attributes[name] for name in (names.PHASE_CALLS, names.PHASE_BYTES_IN, names.PHASE_BYTES_OUT))
        assert after - before == (16 * calls if phase == "encrypt" else -16 * calls)


def test_list_without_checkpoints(recording):
    """A list that returned nothing has a count, too."""
    assert list(InMemorySaver().list(config("empty"))) == []
    assert span_of(recording, "checkpoint.list").attributes[names.COUNT] == 0
