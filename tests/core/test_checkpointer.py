"""Save, load, restore, delete, list and prune with the stores that need no other package."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import subprocess
import sys
import time
import uuid

import pytest

from ckpt_observe.core import Checkpointer, hooks, steps
from ckpt_observe.core.format import container, digests
from ckpt_observe.core.format.blob import Blob
from ckpt_observe.core.saving import task_listing
from ckpt_observe.core.serializers.serializer import MAX_KEYS
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import CapacityError, CheckpointNotFoundError, ConfigError, ConflictError, IntegrityError, SerializationError


@pytest.fixture(params=["memory", "file"])
def location(request, tmp_path):
    return "memory://" if request.param == "memory" else tmp_path / "checkpoints"


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int


def test_keep_last_counts_checkpoints_of_other_writers(location, monkeypatch):
    """Retention takes account of checkpoints of other programs at its next fresh listing."""
    if location == "memory://":
        location = "memory://shared-retention"
    monkeypatch.setattr(task_listing, "REFRESH_INTERVAL", 2)
    ours, theirs = Checkpointer(location, keep_last=3), Checkpointer(location)
    ours.save("agent", {"n": 0})
    for n in range(5):
        theirs.save("agent", {"n": n})
    for n in range(4):
        ours.save("agent", {"n": n})
    assert len(ours.list("agent")) == 3


@pytest.fixture(params=["json", "msgpack"])
def format(request):
    return request.param


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_loaded_state_equals_saved_state(location, state, format, compression):
    """A state is loaded exactly as it was saved, with every format and codec."""
    checkpointer = Checkpointer(location, format=format, compression=compression)
    info = checkpointer.save("agent", state, step=7)
    assert checkpointer.load("agent") == state
    assert checkpointer.load("agent", info.id) == state
    assert (info.format, info.codec, info.step) == (format, compression, 7)


def test_load_returns_the_newest(location):
    """Without an id, `load` returns the newest checkpoint of the task, not of another task."""
    checkpointer = Checkpointer(location)
    for n in range(5):
        checkpointer.save("one", {"n": n})
    checkpointer.save("two", {"n": 99})
    assert checkpointer.load("one") == {"n": 4}


def test_task_without_checkpoints(location):
    """Loading a task without checkpoints raises CheckpointNotFoundError, so that a caller can start from scratch."""
    with pytest.raises(CheckpointNotFoundError, match="'agent' has no checkpoint"):
        Checkpointer(location).load("agent")


def test_restore_returns_the_next_step(location, state):
    """`restore` returns the state, the info and the step after the saved one."""
    checkpointer = Checkpointer(location)
    info = checkpointer.save("agent", state, step=7)
    restored = checkpointer.restore("agent")
    assert restored.state == state
    assert restored.info == info
    assert restored.next_step == 8


def test_restore_into_mapping_and_function(location):
    """`restore` fills a mapping or calls a function with the state."""
    checkpointer = Checkpointer(location)
    checkpointer.save("agent", {"a": 1})
    mapping = {"b": 2}
    received = []
    checkpointer.restore("agent", into=mapping)
    checkpointer.restore("agent", into=received.append)
    assert mapping == {"a": 1}
    assert received == [{"a": 1}]
    with pytest.raises(ConfigError, match="not int"):
        checkpointer.restore("agent", into=3)


def test_existing_id_is_refused(location):
    """A checkpoint is never overwritten: a second one with the same id raises ConflictError, and the first stays."""
    checkpointer = Checkpointer(location)
    checkpointer.save("agent", {"n": 1}, id="step-1")
    with pytest.raises(ConflictError):
        checkpointer.save("agent", {"n": 2}, id="step-1")
    assert checkpointer.load("agent", "step-1") == {"n": 1}


def test_delete_removes_one_checkpoint(location):
    """A deleted checkpoint is gone; deleting it again raises CheckpointNotFoundError."""
    checkpointer = Checkpointer(location)
    checkpointer.save("agent", {"n": 1}, id="a")
    checkpointer.save("agent", {"n": 2}, id="b")
    checkpointer.delete("agent", "b")
    assert [info.id for info in checkpointer.list("agent")] == ["a"]
    with pytest.raises(CheckpointNotFoundError):
        checkpointer.delete("agent", "b")


def test_list_is_newest_first(location):
    """`list` returns the infos that `save` returned, newest first."""
    checkpointer = Checkpointer(location)
    infos = [checkpointer.save("agent", {"n": n}, step=n, metadata={"lr": 0.1}) for n in range(4)]
    assert checkpointer.list("agent") == infos[::-1]


def test_keep_last_removes_the_oldest_after_each_save(location):
    """`keep_last` keeps the newest N checkpoints of a task."""
    checkpointer = Checkpointer(location, keep_last=2)
    for n in range(5):
        checkpointer.save("agent", {"n": n}, step=n)
    assert [info.step for info in checkpointer.list("agent")] == [4, 3]


def test_failed_removal_never_fails_a_save(location, monkeypatch):
    """If removing an old checkpoint fails, the save still succeeds."""
    checkpointer = Checkpointer(location, keep_last=1)
    checkpointer.save("agent", {"n": 0})

    def refuse(task, id):
        raise IntegrityError("no")

    monkeypatch.setattr(checkpointer.store, "discard", refuse)
    info = checkpointer.save("agent", {"n": 1})
    assert checkpointer.list("agent")[0] == info


def test_python_values_keep_type_and_value(location, format):
    """Python values that JSON and MessagePack lack are loaded with their type and value."""
    state = {
        "tuple": (1, (2, [3])),
        "set": {1, 2},
        "frozen": frozenset({"a"}),
        "bytes": b"\x00\xff",
        "complex": 1 + 2j,
        "infinite": float("inf"),
        "when": dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC),
        "naive": dt.datetime.fromisoformat("2026-01-31T12:00:00.000001"),
        "day": dt.date(2026, 1, 31),
        "span": dt.timedelta(days=-1, microseconds=5),
        "money": decimal.Decimal("1.10"),
        "uuid": uuid.UUID(int=7),
        "numbers": {1: "one", (2, 3): "pair", None: "none"},
        "tag": {"~py": "looks like a tag"},
        "large": 2**70,
    }
    checkpointer = Checkpointer(location, format=format)
    checkpointer.save("agent", state)
    loaded_state = checkpointer.load("agent")
    assert loaded_state == state
    assert {key: type(value) for key, value in loaded_state.items()} == {key: type(value) for key, value in state.items()}


def test_nan_is_preserved(location, format):
    """NaN is preserved, although plain JSON would turn it into null."""
    checkpointer = Checkpointer(location, format=format)
    checkpointer.save("agent", {"loss": [1.0, math.nan]})
    losses = checkpointer.load("agent")["loss"]
    assert losses[0] == 1.0
    assert math.isnan(losses[1])


CYCLE = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "bad",
    [CYCLE, object(), [lambda: 0], Point(1, 2), Colour.RED, "\ud800"],
    ids=["cycle", "object", "function", "dataclass", "enum", "surrogate"],
)
def test_state_that_the_format_would_alter_is_refused(location, format, bad):
    """A state that the format would alter is refused by `save`, never silently altered."""
    checkpointer = Checkpointer(location, format=format)
    with pytest.raises(SerializationError):
        checkpointer.save("agent", {"a": bad})
    assert checkpointer.list("agent") == []


def test_refusal_names_the_value():
    """The error names the path of the value that cannot be saved."""
    with pytest.raises(SerializationError, match=r"state\['a'\]\[1\]\['b'\] \(Point\)"):
        Checkpointer("memory://").save("agent", {"a": [0, {"b": Point(1, 2)}]})


@pytest.mark.parametrize(
    "arguments",
    [
        {"step": 5.0},
        {"step": True},
        {"step": 2**63},
        {"status": 5},
        {"tags": "best"},
        {"tags": [1]},
        {"metadata": [1]},
        {"metadata": {1: 2}},
        {"metadata": {"at": object}},
        {"metadata": {"at": "\ud800"}},
    ],
    ids=str,
)
def test_invalid_save_arguments_are_refused(location, arguments):
    """Arguments that the header could not hold raise SerializationError, and no checkpoint is left that cannot be loaded."""
    checkpointer = Checkpointer(location)
    with pytest.raises(SerializationError):
        checkpointer.save("agent", {"a": 1}, **arguments)
    assert checkpointer.list("agent") == []


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_more_keys_than_a_header_lists(location, format):
    """A state with more keys than a header lists is loaded in full, and its header is short."""
    state = {f"conversation {number}": number for number in range(MAX_KEYS + 1)}
    checkpointer = Checkpointer(location, format=format, incremental=2)
    checkpointer.save("agent", state)
    info = checkpointer.save("agent", state)
    assert checkpointer.load("agent") == state
    assert info.keys == {}
    assert info.header_size < 1000
    assert checkpointer.open("agent")["conversation 7"] == 7


@pytest.mark.parametrize("state", [{1: "one", (2, 3): "two"}, {}, {"a": 1}], ids=str)
def test_opened_checkpoint_has_the_keys_of_the_state(location, state):
    """An opened checkpoint has the keys of the state, even if the header does not list them: they are not strings, or too many."""
    checkpointer = Checkpointer(location)
    checkpointer.save("agent", state)
    opened = checkpointer.open("agent")
    assert dict(opened) == state
    assert len(opened) == len(state)
    with pytest.raises(KeyError):
        opened["none"]


def test_header_over_the_limit_is_refused(location, monkeypatch):
    """If long key names or metadata exceed the header limit, the save is refused, because the header would be read truncated."""
    monkeypatch.setattr(container, "MAX_HEADER", 4096)
    checkpointer = Checkpointer(location)
    for arguments in ({"state": {"key " * 1024: 1}}, {"state": {}, "metadata": {"why": "because " * 512}}):
        with pytest.raises(CapacityError):
            checkpointer.save("agent", **arguments)
    assert checkpointer.list("agent") == []


def test_header_is_a_readable_first_line(tmp_path, state):
    """`head -1` of a checkpoint file shows a summary as JSON."""
    info = Checkpointer(tmp_path, compression="zstd").save("agent", state, step=7, metadata={"why": "test"})
    line = (tmp_path / "agent" / f"{info.id}.ckpt").read_bytes().split(b"\n")[0]
    summary = json.loads(line)
    assert summary["checkpoint"] == 2
    assert (summary["id"], summary["task"], summary["step"], summary["codec"]) == (info.id, "agent", 7, "zstd")
    type, size, digest = summary["keys"]["conversation"].split()
    assert (type, digest) == ("list", info.keys["conversation"].digest)
    assert int(size) > 1000
    assert summary["metadata"] == {"why": "test"}
    assert info.stored_size == (tmp_path / "agent" / f"{info.id}.ckpt").stat().st_size


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
@pytest.mark.parametrize("count", [3, 8, 16])
def test_small_agent_states_take_at_most_800_bytes(tmp_path, state, codec, count):
    """A compressed agent state of 500 to 2,000 bytes takes at most 800 bytes on disk, with digests, seal and parent."""
    state["conversation"] = state["conversation"][:count]
    checkpointer = Checkpointer(tmp_path, compression=codec)
    checkpointer.save("agent-run-42", state, step=6)
    info = checkpointer.save("agent-run-42", state, step=7)
    assert 500 < info.serialized_size < 2000
    assert info.parent is not None
    assert all(key.digest for key in info.keys.values())
    assert (tmp_path / "agent-run-42" / f"{info.id}.ckpt").stat().st_size == info.stored_size <= 800


def test_header_is_read_as_it_was_written(location):
    """A header that is read equals the written one."""
    checkpointer = Checkpointer(location, incremental=2)
    parent = checkpointer.save("agent", {"text": "unchanged " * 20, "pair": (1, 2)}, id="own id", step=-1, tags=("a", "b"))
    child = checkpointer.save("agent", {"text": "unchanged " * 20, "pair": ("", None)}, status="", metadata={"é": [1, {}]})
    assert child.bases == (parent.id,)
    for info in (parent, child):
        assert checkpointer.store.info("agent", info.id) == info


def test_context_providers_are_stored_in_the_header(location, monkeypatch):
    """Values of context providers are stored with the checkpoint; a provider that raises, or returns anything but text, is ignored."""

    def broken():
        raise RuntimeError

    monkeypatch.setattr(hooks, "providers", [lambda: {"traceparent": "00-aa-bb-01"}, broken, lambda: {"rank": 5}])
    checkpointer = Checkpointer(location)
    checkpointer.save("agent", {"n": 1})
    assert checkpointer.restore("agent").info.context == {"traceparent": "00-aa-bb-01"}


def test_steps_are_called_through_their_module(location, monkeypatch):
    """Replacing a function of `steps` intercepts every save and load, whatever the plug-ins; steps that are not needed are not called."""
    calls = []
    for name in ("serialize", "compress", "write", "confirm", "read", "validate", "decompress", "deserialize"):
        original = getattr(steps, name)
        monkeypatch.setattr(steps, name, lambda *args, name=name, original=original: calls.append(name) or original(*args))
    compressed = Checkpointer(location, compression="gzip")
    compressed.save("agent", {"n": 1})
    compressed.load("agent")
    assert calls == ["serialize", "compress", "write", "confirm", "read", "validate", "decompress", "deserialize"]
    calls.clear()
    Checkpointer("memory://").save("agent", {"n": 1})
    assert calls == ["serialize", "write", "confirm"]


def test_store_that_alters_bytes_fails_the_save():
    """If a store returns other bytes than were written, the save fails, and the altered checkpoint is not listed."""

    class AlteringStore(MemoryStore):
        def put(self, info, blob):
            super().put(info, Blob((bytes(blob)[:-1] + b"!",)))

    checkpointer = Checkpointer(AlteringStore())
    with pytest.raises(IntegrityError, match="returns other bytes than were written"):
        checkpointer.save("agent", {"n": 1})
    assert checkpointer.list("agent") == []


def test_fallback_only_if_allowed(tmp_path):
    """A damaged newest checkpoint raises an error; with `fallback=True` the last good one is restored, and the damaged one is reported."""
    strict, lenient = Checkpointer(tmp_path), Checkpointer(tmp_path, fallback=True)
    strict.save("agent", {"n": 1}, id="good")
    strict.save("agent", {"n": 2}, id="bad")
    path = tmp_path / "agent" / "bad.ckpt"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(IntegrityError):
        strict.load("agent")
    restored = lenient.restore("agent")
    assert restored.state == {"n": 1}
    assert restored.skipped == ("bad",)


@pytest.mark.parametrize("has_loaded", [True, False], ids=["loaded", "not loaded"])
def test_clock_set_back_loses_nothing(tmp_path, monkeypatch, has_loaded):
    """After the clock was set back a day, a new save can be loaded; if the writer had loaded before, its save is also the newest."""
    with monkeypatch.context() as patch:
        tomorrow = time.time_ns() + 86_400 * 10**9
        patch.setattr(time, "time_ns", lambda: tomorrow)
        Checkpointer(tmp_path, keep_last=1).save("t", {"n": 1}, id="before")
    checkpointer = Checkpointer(tmp_path, keep_last=1)
    if has_loaded:
        checkpointer.load("t")
    checkpointer.save("t", {"n": 2}, id="after")
    assert checkpointer.load("t", "after") == {"n": 2}
    if has_loaded:
        assert checkpointer.load("t") == {"n": 2}


def test_batch_keeps_its_order_after_a_clock_ahead(tmp_path, monkeypatch):
    """Checkpoints of a batch stay in order, even if the checkpoint loaded before has a time in the future."""
    with monkeypatch.context() as patch:
        tomorrow = time.time_ns() + 86_400 * 10**9
        patch.setattr(time, "time_ns", lambda: tomorrow)
        Checkpointer(tmp_path).save("t", {"n": 0})
    checkpointer = Checkpointer(tmp_path)
    checkpointer.load("t")
    with checkpointer.batch() as batch:
        for n in range(1, 9):
            batch.save("t", {"n": n}, step=n)
    assert [info.step for info in checkpointer.list("t")] == [*range(8, 0, -1), None]


@pytest.mark.parametrize("newer", [True, False], ids=["outdated", "lost"])
def test_checkpoint_removed_before_it_is_confirmed(newer, monkeypatch):
    """If another writer's retention removed the checkpoint because there is a newer one, the save succeeds; if the store lost it, it fails."""
    store = MemoryStore()
    put = MemoryStore.put

    def put_and_remove(self, info, blob):
        put(self, info, blob)
        monkeypatch.undo()
        if newer:
            Checkpointer(store).save("t", {"n": 2}, id="newer")
        self.delete("t", info.id)

    Checkpointer(store).save("t", {"n": 0}, id="older")
    monkeypatch.setattr(MemoryStore, "put", put_and_remove)
    if newer:
        Checkpointer(store).save("t", {"n": 1})
        assert Checkpointer(store).load("t") == {"n": 2}
    else:
        with pytest.raises(CheckpointNotFoundError):
            Checkpointer(store).save("t", {"n": 1})


def test_checkpoint_removed_by_other_retention_is_not_a_failure(monkeypatch):
    """A save succeeds if another writer's retention removed its checkpoint at once, even if the newest one it saw is gone, too."""
    store = MemoryStore()
    checkpointer = Checkpointer(store)
    put, newest = store.put, store.newest

    def put_and_overtake(info, blob):
        put(info, blob)
        if info.id == "ours":
            store.delete("t", "ours")
            Checkpointer(store).save("t", {}, id="newer")

    def outdated_newest(task):
        monkeypatch.setattr(store, "newest", newest)
        return "removed-since"

    monkeypatch.setattr(store, "put", put_and_overtake)
    monkeypatch.setattr(store, "newest", outdated_newest)
    assert checkpointer.save("t", {}, id="ours").id == "ours"


@pytest.mark.parametrize("state", [5, "text", ["ab", "cd", 1], None])
def test_restore_into_a_mapping_is_all_or_nothing(state):
    """If the state is not a mapping, the mapping passed as `into` stays unchanged."""
    checkpointer = Checkpointer("memory://")
    checkpointer.save("t", state)
    mapping = {"precious": 1}
    with pytest.raises(ConfigError):
        checkpointer.restore("t", into=mapping)
    assert mapping == {"precious": 1}


SAVE_AT_EXIT = """
import atexit, sys
from ckpt_observe.core import Checkpointer
from ckpt_observe.core.format import digests

checkpointer = Checkpointer(sys.argv[1], compression=sys.argv[2])

@atexit.register
def save():
    checkpointer.save("t", "x" * digests.LARGE)
    print(len(checkpointer.load("t")))
"""


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_large_state_is_saved_at_exit(tmp_path, compression):
    """`atexit` functions can save and load large states, although Python starts no more threads then."""
    run = subprocess.run([sys.executable, "-c", SAVE_AT_EXIT, tmp_path, compression], capture_output=True, text=True, check=True)
    assert (run.stdout.strip(), run.stderr) == (str(digests.LARGE), "")
