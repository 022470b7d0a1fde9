"""A loaded state is compared with the saved one, key by key."""

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


class LossySerializer:
    """Loads less than it saved."""

    name = "lossy"

    def dumps(self, state):
        return JsonSerializer().dumps(state)

    def loads(self, data):
        state = JsonSerializer().loads(data)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in state.items() if key != "rate"}


@pytest.fixture
def lossy_checkpointer():
    serializers.register("lossy", LossySerializer)
    yield Checkpointer(MemoryStore(), format="lossy")
    del serializers._factories["lossy"]


def test_altered_keys_are_reported(lossy_checkpointer):
    """`restore` and `verify` report keys that are missing or have another type, although the bytes are intact."""
    lossy_checkpointer.save("t", STATE)
    assert lossy_checkpointer.restore("t").altered == ("rate", "path")
    [finding] = lossy_checkpointer.verify("t")
    assert (finding.good, finding.altered) == (True, ("rate", "path"))


@pytest.mark.parametrize("format", ["json", "msgpack", "pickle"])
@pytest.mark.parametrize("state", [STATE, {}, [1, 2], "text", {1: 2}], ids=str)
def test_bundled_formats_alter_nothing(format, state):
    """The bundled formats load every key as it was saved."""
    checkpointer = Checkpointer("memory://", format=format)
    checkpointer.save("t", state)
    assert checkpointer.restore("t").altered == ()


class Mode(enum.IntEnum):
    FAST = 1


@pytest.mark.parametrize("format", ["json", "msgpack", "arrays"])
@pytest.mark.parametrize("value", [OrderedDict(weight=1), Mode.FAST], ids=["ordered mapping", "enum member"])
def test_subclass_loaded_as_its_plain_type_is_not_reported(format, value):
    """A value that is loaded as its plain base type, as documented, is not reported: a torch `state_dict` is an OrderedDict."""
    if format == "arrays":
        pytest.importorskip("numpy")
    checkpointer = Checkpointer("memory://", format=format)
    checkpointer.save("t", {"model": value, "done": True})
    restored = checkpointer.restore("t")
    assert restored.altered == ()
    restored.state["done"] = 1
    assert restored.altered == ("done",)


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_bytearray_is_preserved_and_memoryview_refused(format):
    """A bytearray is loaded as a bytearray, although it equals bytes; a memoryview is refused."""
    checkpointer = Checkpointer("memory://", format=format)
    checkpointer.save("t", {"a": bytearray(b"x"), "b": [bytearray(b"y"), b"z"]})
    loaded_state = checkpointer.load("t")
    assert loaded_state == {"a": bytearray(b"x"), "b": [bytearray(b"y"), b"z"]}
    assert [type(value) for value in (loaded_state["a"], *loaded_state["b"])] == [bytearray, bytearray, bytes]
    with pytest.raises(SerializationError, match="memoryview"):
        checkpointer.save("t", {"a": memoryview(b"x")})


def test_number_that_looks_like_a_time_or_bytes():
    """Altered keys are detected by their values, not by bytes in a number that look like a MessagePack type."""
    numbers = struct.unpack(">3d", b"\x3f\xd6\xff\0\0\0\0\0\x3f\xc4\0\0\0\0\0\0\x40\xc7\x0c\xff\0\0\0\0")
    checkpointer = Checkpointer("memory://", format="msgpack")
    checkpointer.save("t", {"numbers": list(numbers), "mode": Mode.FAST})
    assert checkpointer.load("t") == {"numbers": list(numbers), "mode": 1}


class VanishingDict(dict):
    """A dict whose items are gone when they are read, as if another thread removed them."""

    def __getitem__(self, key):
        raise KeyError(key)


class Unpicklable:
    def __reduce__(self):
        raise KeyError("raised by the state")


@pytest.mark.parametrize(
    ("format", "value"),
    [("json", VanishingDict(x=(1,))), ("msgpack", VanishingDict(x=(1,))), ("pickle", Unpicklable())],
    ids=["json", "msgpack", "pickle"],
)
def test_state_that_raises_while_it_is_saved_is_refused(format, value):
    """An exception raised by the state itself becomes a SerializationError."""
    with pytest.raises(SerializationError):
        Checkpointer("memory://", format=format).save("t", {"a": value})


def test_arrays_are_compared_by_element_type_and_shape():
    """An array with another element type is reported as altered."""
    np = pytest.importorskip("numpy")
    checkpointer = Checkpointer("memory://", format="arrays")
    checkpointer.save("t", {"weights": np.zeros((2, 3), "float32"), "step": 1})
    restored = checkpointer.restore("t")
    assert restored.altered == ()
    restored.state["weights"] = restored.state["weights"].astype("float64")
    assert restored.altered == ("weights",)


@pytest.mark.parametrize("format", ["json", "msgpack", "arrays"])
def test_datetime_keeps_its_time_zone(format):
    """A datetime is loaded with its UTC offset; the same instant in another zone is equal, but not what was saved."""
    if format == "arrays":
        pytest.importorskip("numpy")
    due_time = dt.datetime(2026, 1, 1, 0, 30, 0, 5, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    checkpointer = Checkpointer("memory://", format=format)
    checkpointer.save("t", {"due": [due_time]})
    assert checkpointer.load("t")["due"][0].isoformat() == due_time.isoformat()
