"""The format `arrays`."""

from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import pytest

pytest.importorskip("numpy")

import msgspec
import numpy as np

from ckpt_observe.core import Checkpointer, compare
from ckpt_observe.core.format import digests
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.serializers import arrays
from ckpt_observe.core.serializers.arrays import ArraysSerializer
from ckpt_observe.errors import IntegrityError, SerializationError

STATE = {
    "weights": np.arange(12, dtype=np.float32).reshape(3, 4),
    "nested": [{"ids": np.array([1, 2, 3], dtype=">i8")}, (np.array(7), "text")],
    "strided": np.arange(100)[::3],
    "empty": np.zeros((0, 5)),
    "flags": np.array([True, False]),
    "times": np.array(["2026-01-31"], dtype="M8[D]"),
    "words": np.array(["a", "bc"]),
    "step": 4,
}


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_arrays_round_trip(tmp_path, compression):
    """Arrays anywhere in a state are loaded with the same type, shape and values."""
    checkpointer = Checkpointer(tmp_path, format="arrays", compression=compression)
    info = checkpointer.save("train", STATE, step=4)
    loaded = checkpointer.load("train")
    assert same(STATE, loaded)
    assert loaded["weights"].flags.writeable
    assert info.keys["weights"].type == "array[float32[3, 4]]"


def test_memory_of_arrays_is_not_copied():
    """The document shares the memory of a contiguous array, and a loaded array is a view of the bytes that were read."""
    array = np.arange(1000)
    document = ArraysSerializer().dumps({"a": array})
    assert np.shares_memory(np.frombuffer(document.pieces[2], np.uint8), array)
    data = bytearray(bytes(document))
    loaded = ArraysSerializer().loads(data)["a"]
    assert np.shares_memory(np.frombuffer(data, np.uint8), loaded)
    loaded[0] = 5  # writable


def test_arrays_are_aligned():
    """Arrays start at multiples of 64 bytes in the document."""
    document = ArraysSerializer().dumps({"a": np.zeros(3, np.uint8), "b": np.zeros(5)})
    data = bytearray(bytes(document))
    loaded = ArraysSerializer().loads(data)
    start = np.frombuffer(data, np.uint8).ctypes.data
    assert {(loaded[key].ctypes.data - start) % 64 for key in "ab"} == {0}


@pytest.mark.parametrize("bad", [np.array([object()]), np.zeros(2, dtype=[("x", "i4")]), object()], ids=["objects", "records", "object"])
def test_objects_are_refused(bad):
    """Loading arrays of objects would run code, so they are refused."""
    with pytest.raises(SerializationError):
        ArraysSerializer().dumps({"a": bad})


def test_hostile_documents_are_refused():
    """An array that claims to be outside the document, or to contain objects, is refused."""
    good = bytes(ArraysSerializer().dumps({"a": np.arange(4)}))
    for bad in (
        good[:-40],
        good.replace(b'"<i8"', b'"|O8"'),
        good.replace(b'"size":32', b'"size":99'),
        good.replace(b'"offset":0', b'"offset":-8'),
        good.replace(b'{"a":', b'{"a":-'),
        good.replace(b'{"a":', b'{"a":9'),
        b"",
        b"\n",
    ):
        with pytest.raises(SerializationError):
            ArraysSerializer().loads(bad)


def test_large_digests_are_independent_of_pieces(monkeypatch):
    """The digest of a large payload depends on its bytes, not on how they are split into pieces; a flipped bit changes it."""
    monkeypatch.setattr(digests, "CHUNK", 100)
    data = bytes(range(256)) * 10
    digest = digests.compute_large([data])
    assert digest == digests.compute_large([data[:99], data[99:101], b"", data[101:]])
    assert digests.matches(digest, [data])
    assert not digests.matches(digest, [data[:-1] + b"x"])


def test_large_checkpoint_is_checked(tmp_path):
    """Damage is also detected in payloads that are hashed in parallel."""
    checkpointer = Checkpointer(tmp_path, format="arrays")
    info = checkpointer.save("t", {"a": np.ones(digests.LARGE, np.uint8)}, id="x")
    assert info.digest.startswith("sha256-keys:")
    assert info.keys["a"].digest.startswith("sha256-4m:")
    assert checkpointer.load("t")["a"].sum() == digests.LARGE
    with open(tmp_path / "t" / "x.ckpt", "r+b") as file:
        file.seek(-1000, 2)
        file.write(b"\x00")
    with pytest.raises(IntegrityError, match="content of 'a' does not"):
        checkpointer.load("t")


@dataclass
class Config:
    rate: float = 0.1


Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - without types
Level = enum.IntEnum("Level", "LOW HIGH")


@pytest.mark.parametrize(
    "value", [Config(), Point(1, 2), memoryview(b"x"), np.ma.array([1, 2], mask=[0, 1]), np.float32(1)], ids=lambda v: type(v).__name__
)
def test_values_that_would_change_are_refused(value):
    """A state that would be loaded as something else is refused when it is saved, and the error names the type."""
    for state in ({"key": value}, {"key": [value]}, [value]):
        with pytest.raises(SerializationError, match=type(value).__name__):
            ArraysSerializer().dumps(state)


def test_values_that_stay_equal_are_accepted():
    """An OrderedDict, as torch's `state_dict` returns, and a member of an IntEnum are loaded as equal values."""
    state = OrderedDict(layer=OrderedDict(bias=np.arange(3)), level=Level.HIGH)
    document = ArraysSerializer().dumps(state)
    assert list(document.keys) == ["layer", "level"]
    assert same({"layer": {"bias": np.arange(3)}, "level": 2}, ArraysSerializer().loads(bytes(document)))


def test_staged_and_batched_arrays_are_copied(tmp_path):
    """Changes after a state was staged, or added to a batch, do not affect its checkpoint."""
    checkpointer = Checkpointer(tmp_path, format="arrays")
    array = np.zeros(1000)
    staged = checkpointer.stage({"a": array})
    with checkpointer.batch() as batch:
        batch.save("t", {"a": array}, id="batched")
        array[:] = 1
    checkpointer.save("t", staged, id="staged")
    assert not checkpointer.load("t", "batched")["a"].any()
    assert not checkpointer.load("t", "staged")["a"].any()


@pytest.mark.parametrize("url", ["file://{}/files", "sqlite://{}/one.db", "memory://"])
def test_large_payload_has_its_digest_in_the_header(tmp_path, url):
    """A large payload is hashed while it is written; the header before it, and the info that `save` returns, have its digest anyway."""
    checkpointer = Checkpointer(url.format(tmp_path), format="arrays")
    info = checkpointer.save("t", {"a": np.ones(digests.LARGE, np.uint8)})
    assert info.digest not in (digests.PENDING, digests.PENDING_KEYED)
    assert checkpointer.list("t") == [info]
    assert checkpointer.store.size("t", info.id) == info.stored_size
    assert checkpointer.load("t")["a"].all()
    checkpointer.store.close()


@pytest.mark.parametrize("state", [{"~py": "tuple", "v": [1]}, {"~py": 1, "x": (2,)}, {"a": {"~py": "array", "v": 0}}, [{"~py": "set"}]])
def test_keys_that_look_like_tags_round_trip(state):
    """A state that itself uses the key of tagged values is loaded unchanged."""
    checkpointer = Checkpointer("memory://", format="arrays")
    checkpointer.save("t", state)
    assert checkpointer.load("t") == state


LAYERS = {"frozen": np.arange(400_000.0), "head": np.zeros(400_000), "step": 1}


def test_large_arrays_have_digests_and_are_compared(tmp_path):
    """A key of any size has its own digest, and `compare` recognizes it as unchanged."""
    checkpointer = Checkpointer(tmp_path, format="arrays")
    old = checkpointer.save("t", LAYERS)
    new = checkpointer.save("t", {**LAYERS, "head": np.ones(400_000), "step": 2})
    assert all(key.digest for key in new.keys.values())
    difference = compare(old, new)
    assert (difference.unchanged, difference.changed) == (("frozen",), ("head", "step"))


def test_unchanged_arrays_are_not_written_again(tmp_path):
    """With `incremental`, an unchanged layer is stored as a reference, staged or not, and the whole state is loaded."""
    checkpointer = Checkpointer(tmp_path, format="arrays", incremental=4)
    first = checkpointer.save("t", LAYERS)
    state = {**LAYERS, "head": np.ones(400_000), "step": 2}
    second = checkpointer.save("t", checkpointer.stage(state))
    assert (second.bases, second.keys["frozen"].base) == ((first.id,), first.id)
    assert second.payload_size < first.payload_size * 0.6
    assert same(state, checkpointer.load("t"))
    assert same(state["frozen"], checkpointer.open("t")["frozen"])


def test_one_array_is_read_alone(tmp_path, monkeypatch):
    """Opening a checkpoint and reading one array reads only that array; it is writable, and its damage is detected."""
    checkpointer = Checkpointer(tmp_path, format="arrays")
    checkpointer.save("t", LAYERS, id="x")
    with monkeypatch.context() as patch:
        patch.setattr(checkpointer.store, "get", None)
        head = checkpointer.open("t", "x")["head"]
    assert same(head, LAYERS["head"])
    assert head.flags.writeable
    path = tmp_path / "t" / "x.ckpt"
    data = path.read_bytes()
    path.write_bytes(data[:-1000] + b"!" + data[-999:])
    with pytest.raises(IntegrityError):
        checkpointer.open("t", "x")["head"]


@pytest.mark.parametrize("hashed_at_once", [0, 2**20], ids=["large keys", "small keys"])
def test_every_flip_in_a_large_checkpoint_is_detected(tmp_path, monkeypatch, hashed_at_once):
    """In a payload that is hashed by key every flipped byte is detected, also between the keys and in an incremental checkpoint."""
    monkeypatch.setattr(digests, "LARGE", 1)
    monkeypatch.setattr(arrays, "_HASHED_AT_ONCE", hashed_at_once)
    checkpointer = Checkpointer(tmp_path, format="arrays", incremental=1)
    checkpointer.save("t", {"a": np.arange(20), "b": np.arange(9)}, id="base")
    info = checkpointer.save("t", {"a": np.arange(20), "b": np.arange(3), "n": 1}, id="x")
    assert (info.bases, info.digest.partition(":")[0]) == (("base",), "sha256-keys")
    assert checkpointer.load("t", "x")["a"][19] == 19
    path = tmp_path / "t" / "x.ckpt"
    good = path.read_bytes()
    for offset in range(info.header_size, len(good)):
        path.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
        with pytest.raises(IntegrityError):
            checkpointer.load("t", "x")


def nested(depth):
    value = ()
    for _ in range(depth):
        value = (value,)
    return value


@pytest.mark.parametrize("value", [complex("inf"), complex("nan"), complex(1, -2.5)])
def test_complex_numbers_round_trip(value):
    """This includes infinity and NaN."""
    checkpointer = Checkpointer("memory://", format="arrays")
    checkpointer.save("t", {"z": value})
    assert repr(checkpointer.load("t")["z"]) == repr(value)


def test_too_deep_states_are_refused():
    """A state that could be written but never loaded is refused when it is saved."""
    checkpointer = Checkpointer("memory://", format="arrays")
    with pytest.raises(SerializationError):
        checkpointer.save("t", {"deep": nested(350)})
    assert checkpointer.list("t") == []


def test_document_shorter_than_its_header_says_is_read_whole():
    """If a header declares more bytes than there are, as headers of an earlier layout may, the whole document is read."""
    checkpointer = Checkpointer("memory://", format="arrays")
    names = [f"key{n}" for n in range(200)]
    info = checkpointer.save("t", dict.fromkeys(names, 1), id="x")
    longer = {name: KeyInfo(key.type, key.size + 64, key.digest) for name, key in info.keys.items()}
    opened = checkpointer.open("t")
    msgspec.structs.force_setattr(opened.info, "keys", longer)
    assert opened["key199"] == 1


@pytest.mark.parametrize("size", [10, 10_000_000], ids=["small", "large"])
def test_loaded_arrays_are_aligned(tmp_path, size):
    """Whatever the length of the header, loaded arrays are aligned."""
    checkpointer = Checkpointer(tmp_path, format="arrays")
    for task in ("t", "task", "tasks12"):
        info = checkpointer.save(task, {"a": np.zeros(size, np.complex64), "b": np.zeros(3)}, metadata={"long": task})
        assert info.header_size % 64 == 0
        assert all(array.flags.aligned for array in checkpointer.load(task).values())


@pytest.mark.parametrize(
    "state", [{"\ud800": 1}, {"a": {"\ud800": 1}}, {1: "\ud800"}, ["\ud800"]], ids=["key", "nested key", "value", "item"]
)
def test_text_that_utf8_cannot_encode(state):
    """A lone surrogate, wherever it is, raises SerializationError, and not the error of the encoder."""
    with pytest.raises(SerializationError) as caught:
        Checkpointer("memory://", format="arrays").save("t", state)
    assert caught.value.code == "serialization.unsupported_type"
