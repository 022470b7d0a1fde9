"""Save, load, restore, delete, list, prune on the stores that need nothing installed."""

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
def where(request, tmp_path):
    return "memory://" if request.param == "memory" else tmp_path / "checkpoints"


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int


def test_keep_last_sees_what_others_saved(where, monkeypatch):
    """K5: retention notices the checkpoints of other programs at its next fresh listing."""
    if where == "memory://":
        where = "memory://shared-retention"
    monkeypatch.setattr(task_listing, "REFRESH_INTERVAL", 2)
    mine, theirs = Checkpointer(where, keep_last=3), Checkpointer(where)
    mine.save("agent", {"n": 0})
    for n in range(5):
        theirs.save("agent", {"n": n})
    for n in range(4):
        mine.save("agent", {"n": n})
    assert len(mine.list("agent")) == 3


@pytest.fixture(params=["json", "msgpack"])
def format(request):
    return request.param


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_state_comes_back_equal(where, state, format, compression):
    """K3: the whole state round-trips exactly, in every format and codec."""
    checkpointer = Checkpointer(where, format=format, compression=compression)
    info = checkpointer.save("agent", state, step=7)
    assert checkpointer.load("agent") == state
    assert checkpointer.load("agent", info.id) == state
    assert (info.format, info.codec, info.step) == (format, compression, 7)


def test_load_gives_the_newest(where):
    """K2: without an id the newest checkpoint of that task comes back, not of another."""
    checkpointer = Checkpointer(where)
    for n in range(5):
        checkpointer.save("one", {"n": n})
    checkpointer.save("two", {"n": 99})
    assert checkpointer.load("one") == {"n": 4}


def test_nothing_saved_is_not_found(where):
    """K2: a task without checkpoints says so, with a class that a caller can start fresh on."""
    with pytest.raises(CheckpointNotFoundError, match="'agent' has no checkpoint"):
        Checkpointer(where).load("agent")


def test_restore_says_where_to_go_on(where, state):
    """Restore gives state, info and the step after the saved one."""
    checkpointer = Checkpointer(where)
    saved = checkpointer.save("agent", state, step=7)
    restored = checkpointer.restore("agent")
    assert restored.state == state
    assert restored.info == saved
    assert restored.next_step == 8


def test_restore_into_mapping_and_function(where):
    """Restore applies the state to the running program."""
    checkpointer = Checkpointer(where)
    checkpointer.save("agent", {"a": 1})
    live = {"b": 2}
    seen = []
    checkpointer.restore("agent", into=live)
    checkpointer.restore("agent", into=seen.append)
    assert live == {"a": 1}
    assert seen == [{"a": 1}]
    with pytest.raises(ConfigError, match="not int"):
        checkpointer.restore("agent", into=3)


def test_taken_id_is_refused(where):
    """A checkpoint is never overwritten: the second of the same id is a conflict, the first stays."""
    checkpointer = Checkpointer(where)
    checkpointer.save("agent", {"n": 1}, id="step-1")
    with pytest.raises(ConflictError):
        checkpointer.save("agent", {"n": 2}, id="step-1")
    assert checkpointer.load("agent", "step-1") == {"n": 1}


def test_delete_removes_one(where):
    """A deleted checkpoint is gone; deleting it again is not found."""
    checkpointer = Checkpointer(where)
    checkpointer.save("agent", {"n": 1}, id="a")
    checkpointer.save("agent", {"n": 2}, id="b")
    checkpointer.delete("agent", "b")
    assert [info.id for info in checkpointer.list("agent")] == ["a"]
    with pytest.raises(CheckpointNotFoundError):
        checkpointer.delete("agent", "b")


def test_list_is_newest_first_and_equals_what_save_returned(where):
    """The listing holds the very infos that the saves returned."""
    checkpointer = Checkpointer(where)
    saved = [checkpointer.save("agent", {"n": n}, step=n, metadata={"lr": 0.1}) for n in range(4)]
    assert checkpointer.list("agent") == saved[::-1]


def test_keep_last_removes_the_oldest_after_each_save(where):
    """K5: newest N per task stay."""
    checkpointer = Checkpointer(where, keep_last=2)
    for n in range(5):
        checkpointer.save("agent", {"n": n}, step=n)
    assert [info.step for info in checkpointer.list("agent")] == [4, 3]


def test_failed_removal_never_fails_a_save(where, monkeypatch):
    """K5: when tidying up fails, the save has still succeeded."""
    checkpointer = Checkpointer(where, keep_last=1)
    checkpointer.save("agent", {"n": 0})

    def refuse(task, id):
        raise IntegrityError("no")

    monkeypatch.setattr(checkpointer.store, "discard", refuse)
    info = checkpointer.save("agent", {"n": 1})
    assert checkpointer.list("agent")[0] == info


def test_python_values_come_back_as_they_were(where, format):
    """K3, N4: what JSON and MessagePack do not have comes back with its type and value all the same."""
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
    checkpointer = Checkpointer(where, format=format)
    checkpointer.save("agent", state)
    loaded = checkpointer.load("agent")
    assert loaded == state
    assert {key: type(value) for key, value in loaded.items()} == {key: type(value) for key, value in state.items()}


def test_not_a_number_comes_back(where, format):
    """N4: NaN is carried, where plain JSON would have turned it into null."""
    checkpointer = Checkpointer(where, format=format)
    checkpointer.save("agent", {"loss": [1.0, math.nan]})
    loaded = checkpointer.load("agent")["loss"]
    assert loaded[0] == 1.0
    assert math.isnan(loaded[1])


CYCLE = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "bad",
    [CYCLE, object(), [lambda: 0], Point(1, 2), Colour.RED, "\ud800"],
    ids=["cycle", "object", "function", "dataclass", "enum", "surrogate"],
)
def test_what_would_change_is_refused(where, format, bad):
    """N4: a state that the format would alter is refused at save, never silently altered."""
    checkpointer = Checkpointer(where, format=format)
    with pytest.raises(SerializationError):
        checkpointer.save("agent", {"a": bad})
    assert checkpointer.list("agent") == []


def test_refusal_names_the_value():
    """The error says which value of the state is the trouble."""
    with pytest.raises(SerializationError, match=r"state\['a'\]\[1\]\['b'\] \(Point\)"):
        Checkpointer("memory://").save("agent", {"a": [0, {"b": Point(1, 2)}]})


@pytest.mark.parametrize(
    "said",
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
def test_what_a_header_cannot_say_is_refused(where, said):
    """A save whose header would not be read again fails as such, instead of leaving what no load takes."""
    checkpointer = Checkpointer(where)
    with pytest.raises(SerializationError):
        checkpointer.save("agent", {"a": 1}, **said)
    assert checkpointer.list("agent") == []


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_more_keys_than_a_header_lists(where, format):
    """A state with ever so many keys comes back; its header is short."""
    state = {f"conversation {number}": number for number in range(MAX_KEYS + 1)}
    checkpointer = Checkpointer(where, format=format, incremental=2)
    checkpointer.save("agent", state)
    info = checkpointer.save("agent", state)
    assert checkpointer.load("agent") == state
    assert info.keys == {}
    assert info.header_size < 1000
    assert checkpointer.open("agent")["conversation 7"] == 7


@pytest.mark.parametrize("state", [{1: "one", (2, 3): "two"}, {}, {"a": 1}], ids=str)
def test_what_is_opened_has_the_keys_of_the_state(where, state):
    """Also where the header does not list them: they are not strings, or too many."""
    checkpointer = Checkpointer(where)
    checkpointer.save("agent", state)
    opened = checkpointer.open("agent")
    assert dict(opened) == state
    assert len(opened) == len(state)
    with pytest.raises(KeyError):
        opened["none"]


def test_a_header_longer_than_is_read_is_refused(where, monkeypatch):
    """Names of keys and metadata may be long: what would be read as cut is not written."""
    monkeypatch.setattr(container, "MAX_HEADER", 4096)
    checkpointer = Checkpointer(where)
    for said in ({"state": {"key " * 1024: 1}}, {"state": {}, "metadata": {"why": "because " * 512}}):
        with pytest.raises(CapacityError):
            checkpointer.save("agent", **said)
    assert checkpointer.list("agent") == []


def test_header_is_a_readable_first_line(tmp_path, state):
    """D1: `head -1` of a checkpoint file shows a JSON summary."""
    info = Checkpointer(tmp_path, compression="zstd").save("agent", state, step=7, metadata={"why": "test"})
    line = (tmp_path / "agent" / f"{info.id}.ckpt").read_bytes().split(b"\n")[0]
    summary = json.loads(line)
    assert summary["checkpoint"] == 1
    assert (summary["task"], summary["step"], summary["status"]) == ("agent", 7, "running")
    assert summary["keys"]["conversation"]["type"] == "list"
    assert summary["keys"]["conversation"]["size"] > 1000
    assert summary["metadata"] == {"why": "test"}
    assert summary["timings"].keys() == {"serialize", "pack"}
    assert info.stored_size == (tmp_path / "agent" / f"{info.id}.ckpt").stat().st_size


def test_context_providers_reach_the_header(where, monkeypatch):
    """Facts about the surroundings of a save come back with the checkpoint; a provider that fails, or says what is no text, is left out."""

    def broken():
        raise RuntimeError

    monkeypatch.setattr(hooks, "providers", [lambda: {"traceparent": "00-aa-bb-01"}, broken, lambda: {"rank": 5}])
    checkpointer = Checkpointer(where)
    checkpointer.save("agent", {"n": 1})
    assert checkpointer.restore("agent").info.context == {"traceparent": "00-aa-bb-01"}


def test_steps_are_called_through_their_module(where, monkeypatch):
    """Replacing a function of `steps` sees every save and load, whatever is plugged in; absent steps are not called."""
    seen = []
    for name in ("serialize", "compress", "write", "confirm", "read", "validate", "decompress", "deserialize"):
        original = getattr(steps, name)
        monkeypatch.setattr(steps, name, lambda *args, name=name, original=original: seen.append(name) or original(*args))
    zipped = Checkpointer(where, compression="gzip")
    zipped.save("agent", {"n": 1})
    zipped.load("agent")
    assert seen == ["serialize", "compress", "write", "confirm", "read", "validate", "decompress", "deserialize"]
    seen.clear()
    Checkpointer("memory://").save("agent", {"n": 1})
    assert seen == ["serialize", "write", "confirm"]


def test_store_that_alters_is_caught_at_save():
    """L7: a store that returns other bytes than were written fails the save, and the altered checkpoint cannot be loaded."""

    class Forgetful(MemoryStore):
        def put(self, info, blob):
            super().put(info, Blob((bytes(blob)[:-1] + b"!",)))

    checkpointer = Checkpointer(Forgetful())
    with pytest.raises(IntegrityError, match="returns other bytes than were written"):
        checkpointer.save("agent", {"n": 1})
    assert checkpointer.list("agent") == []


def test_fallback_only_when_allowed_and_said(tmp_path):
    """K7: a damaged newest checkpoint is an error, or passed over to the last good one where that is allowed, and said."""
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


@pytest.mark.parametrize("known", [True, False], ids=["loaded", "not loaded"])
def test_clock_that_went_back_loses_nothing(tmp_path, monkeypatch, known):
    """F18, K5: after the machine's clock was set back a day, a save is there when it returns; who loaded before is newest again."""
    with monkeypatch.context() as patch:
        tomorrow = time.time_ns() + 86_400 * 10**9
        patch.setattr(time, "time_ns", lambda: tomorrow)
        Checkpointer(tmp_path, keep_last=1).save("t", {"n": 1}, id="before")
    checkpointer = Checkpointer(tmp_path, keep_last=1)
    if known:
        checkpointer.load("t")
    checkpointer.save("t", {"n": 2}, id="after")
    assert checkpointer.load("t", "after") == {"n": 2}
    if known:
        assert checkpointer.load("t") == {"n": 2}


def test_batch_after_a_clock_that_was_ahead_keeps_its_order(tmp_path, monkeypatch):
    """K5: what a batch saves one after the other stays in that order, though the checkpoint loaded before it is from a clock ahead of this one."""
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
def test_removed_before_it_is_confirmed(newer, monkeypatch):
    """K8: a save that another's retention removed at once, as there is a newer one, has succeeded; one that the store lost has not."""
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


def test_save_that_retention_of_others_overtook_is_no_failure(monkeypatch):
    """K5, K8: what another writer's retention removed at once was saved all the same, also where the newer one it saw is gone in turn."""
    store = MemoryStore()
    checkpointer = Checkpointer(store)
    put, newest = store.put, store.newest

    def overtaken(info, blob):
        put(info, blob)
        if info.id == "mine":
            store.delete("t", "mine")
            Checkpointer(store).save("t", {}, id="newer")

    def outdated(task):
        monkeypatch.setattr(store, "newest", newest)
        return "removed-since"

    monkeypatch.setattr(store, "put", overtaken)
    monkeypatch.setattr(store, "newest", outdated)
    assert checkpointer.save("t", {}, id="mine").id == "mine"


@pytest.mark.parametrize("state", [5, "text", ["ab", "cd", 1], None])
def test_restore_into_a_mapping_is_whole_or_not_at_all(state):
    """K7: a state that does not fit leaves the running program's mapping as it was."""
    checkpointer = Checkpointer("memory://")
    checkpointer.save("t", state)
    live = {"precious": 1}
    with pytest.raises(ConfigError):
        checkpointer.restore("t", into=live)
    assert live == {"precious": 1}


AT_THE_END = """
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
def test_large_state_is_saved_at_the_end_of_the_program(tmp_path, compression):
    """K3: what `atexit` calls can save and load, though Python begins no more threads then."""
    run = subprocess.run([sys.executable, "-c", AT_THE_END, tmp_path, compression], capture_output=True, text=True, check=True)
    assert (run.stdout.strip(), run.stderr) == (str(digests.LARGE), "")
