"""Whether what came back is what was saved, key by key."""

from __future__ import annotations

import datetime as dt
import enum
import struct
from collections import OrderedDict

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.plugins import serializers
from ckpt_observe.core.serializers.builtin import JsonSerializer
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import SerializationError

STATE = {"step": 3, "rate": 0.5, "names": ["a"], "path": (1, 2), "when": None}


class Careless:
    """Reads back less than it wrote."""

    name = "careless"

    def dumps(self, state):
        return JsonSerializer().dumps(state)

    def loads(self, data):
        state = JsonSerializer().loads(data)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in state.items() if key != "rate"}


@pytest.fixture
def careless():
    serializers.register("careless", Careless)
    yield Checkpointer(MemoryStore(), format="careless")
    del serializers._factories["careless"]


def test_key_that_is_not_what_was_saved_is_named(careless):
    """N4: a key that is lost, or of another type, is named by a restore and by a verify; its bytes are whole all the same."""
    careless.save("t", STATE)
    assert careless.restore("t").altered == ("rate", "path")
    [finding] = careless.verify("t")
    assert (finding.good, finding.altered) == (True, ("rate", "path"))


@pytest.mark.parametrize("format", ["json", "msgpack", "pickle"])
@pytest.mark.parametrize("state", [STATE, {}, [1, 2], "text", {1: 2}], ids=str)
def test_nothing_is_altered(format, state):
    """N4: our own formats give back each key as it was."""
    checkpointer = Checkpointer("memory://", format=format)
    checkpointer.save("t", state)
    assert checkpointer.restore("t").altered == ()


class Mode(enum.IntEnum):
    FAST = 1


@pytest.mark.parametrize("format", ["json", "msgpack", "arrays"])
@pytest.mark.parametrize("value", [OrderedDict(weight=1), Mode.FAST], ids=["ordered mapping", "member of an enum"])
def test_kind_of_a_plain_type_is_not_altered(format, value):
    """N4: what comes back as the plain type that it is a kind of, as promised, is no alarm: a `state_dict` of torch is an ordered mapping."""
    if format == "arrays":
        pytest.importorskip("numpy")
    checkpointer = Checkpointer("memory://", format=format)
    checkpointer.save("t", {"model": value, "done": True})
    restored = checkpointer.restore("t")
    assert restored.altered == ()
    restored.state["done"] = 1
    assert restored.altered == ("done",)


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_what_is_equal_but_of_another_type_is_carried_or_refused(format):
    """K3: a bytearray is no bytes, though Python calls them equal, wherever it is; a memoryview has no form of its own."""
    checkpointer = Checkpointer("memory://", format=format)
    checkpointer.save("t", {"a": bytearray(b"x"), "b": [bytearray(b"y"), b"z"]})
    loaded = checkpointer.load("t")
    assert loaded == {"a": bytearray(b"x"), "b": [bytearray(b"y"), b"z"]}
    assert [type(value) for value in (loaded["a"], *loaded["b"])] == [bytearray, bytearray, bytes]
    with pytest.raises(SerializationError, match="memoryview"):
        checkpointer.save("t", {"a": memoryview(b"x")})


def test_number_that_looks_like_a_time_or_bytes_is_only_a_number():
    """K3: whether a state is altered is told by its values, not by bytes that MessagePack has in a number by chance."""
    numbers = struct.unpack(">3d", b"\x3f\xd6\xff\0\0\0\0\0\x3f\xc4\0\0\0\0\0\0\x40\xc7\x0c\xff\0\0\0\0")
    checkpointer = Checkpointer("memory://", format="msgpack")
    checkpointer.save("t", {"numbers": list(numbers), "mode": Mode.FAST})
    assert checkpointer.load("t") == {"numbers": list(numbers), "mode": 1}


class Vanishing(dict):
    """Another thread takes out what was just seen in it."""

    def __getitem__(self, key):
        raise KeyError(key)


class Unpicklable:
    def __reduce__(self):
        raise KeyError("mine")


@pytest.mark.parametrize(
    ("format", "value"),
    [("json", Vanishing(x=(1,))), ("msgpack", Vanishing(x=(1,))), ("pickle", Unpicklable())],
    ids=["json", "msgpack", "pickle"],
)
def test_state_that_raises_while_it_is_saved_is_refused(format, value):
    """K3: whatever comes of looking at a state is told as a state that cannot be saved."""
    with pytest.raises(SerializationError):
        Checkpointer("memory://", format=format).save("t", {"a": value})


def test_arrays_are_told_by_element_type_and_shape():
    """N4: of an array also these are compared."""
    np = pytest.importorskip("numpy")
    checkpointer = Checkpointer("memory://", format="arrays")
    checkpointer.save("t", {"weights": np.zeros((2, 3), "float32"), "step": 1})
    restored = checkpointer.restore("t")
    assert restored.altered == ()
    restored.state["weights"] = restored.state["weights"].astype("float64")
    assert restored.altered == ("weights",)


@pytest.mark.parametrize("format", ["json", "msgpack", "arrays"])
def test_time_comes_back_in_its_zone(format):
    """K3: the same moment at another hour of another zone is not what was saved, though Python calls it equal."""
    if format == "arrays":
        pytest.importorskip("numpy")
    saved = dt.datetime(2026, 1, 1, 0, 30, 0, 5, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    checkpointer = Checkpointer("memory://", format=format)
    checkpointer.save("t", {"due": [saved]})
    assert checkpointer.load("t")["due"][0].isoformat() == saved.isoformat()
