"""States that the program changes while they are saved: the save raises an error that can be retried, and stores nothing."""

from __future__ import annotations

from collections import OrderedDict, deque

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.format.blob import split_evenly, split_sizes
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import CheckpointNotFoundError, SerializationError


class ChangingStore(MemoryStore):
    """Calls `change` after each put, as another thread could at that moment."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def put(self, info, blob):
        super().put(info, blob)
        self.change()


@pytest.mark.parametrize("size", [10, 10_000, 200_000, 5_000_000], ids=["small", "read-back", "size-compared", "hashed-while-written"])
@pytest.mark.parametrize("place", ["file", "memory"])
def test_array_changed_during_a_save(tmp_path, monkeypatch, place, size):
    """If an array changes after it was hashed and before it is written, the save raises and the checkpoint, which would not load, is removed."""
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros(size)
    checkpointer = Checkpointer(tmp_path if place == "file" else "memory://", format="arrays")
    put = checkpointer.store.put

    def change_then_put(info, blob):
        assert blob.pieces  # waits until the digest of a large payload is known
        array[-1] += 1
        put(info, blob)

    monkeypatch.setattr(checkpointer.store, "put", change_then_put)
    with pytest.raises(SerializationError) as caught:
        checkpointer.save("t", {"weights": array, "step": 1}, id="a")
    assert (caught.value.code, caught.value.retryable) == ("serialization.concurrent_change", True)
    assert "'a' of 't' was removed" in str(caught.value)
    with pytest.raises(CheckpointNotFoundError):
        checkpointer.load("t", "a")
    monkeypatch.undo()
    checkpointer.save("t", {"weights": array, "step": 1}, id="a")
    assert (checkpointer.load("t", "a")["weights"] == array).all()


def test_staged_array_may_change():
    """The program may change an array after `stage`: the staged copy is saved."""
    numpy = pytest.importorskip("numpy")
    array = numpy.zeros(10)
    checkpointer = Checkpointer(ChangingStore(lambda: array.fill(1)), format="arrays")
    checkpointer.save("t", checkpointer.stage({"weights": array}))
    assert (checkpointer.load("t")["weights"] == 0).all()


class Growing:
    """A value that changes the container it is in whenever it is pickled."""

    def __init__(self, change):
        self.change = change

    def __reduce__(self):
        self.change()
        return int, ()


@pytest.mark.parametrize("container", [{}, OrderedDict(), deque()], ids=lambda container: type(container).__name__)
def test_container_changed_while_it_is_pickled(container):
    """A container that grows while it is pickled is reported as changed, and not as a value that cannot be pickled."""
    growing = Growing(lambda: container.append(1) if isinstance(container, deque) else container.update({len(container): 1}))
    for n in range(3):
        container.append(growing) if isinstance(container, deque) else container.update({f"key{n}": growing})
    with pytest.raises(SerializationError) as caught:
        Checkpointer("memory://", format="pickle").save("t", container)
    assert (caught.value.code, caught.value.retryable) == ("serialization.concurrent_change", True)


@pytest.mark.parametrize("format", ["json", "msgpack"])
@pytest.mark.parametrize("moment", ["encode", "decode"])
def test_dict_that_keeps_changing(monkeypatch, format, moment):
    """A state that changes whenever it is encoded, or before it is compared with what would be loaded, is reported as changed."""
    state, checkpointer = {"messages": [1]}, Checkpointer("memory://", format=format)
    original = getattr(checkpointer.serializer, moment)

    def change_then_call(value):
        state["messages"].append(1)
        state[f"key{len(state['messages'])}"] = 1
        return original(value)

    monkeypatch.setattr(checkpointer.serializer, moment, change_then_call)
    with pytest.raises(SerializationError) as caught:
        checkpointer.save("t", state)
    assert (caught.value.code, caught.value.retryable) == ("serialization.concurrent_change", True)


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_dict_that_changes_once(monkeypatch, format):
    """A state that changes once during a save is encoded again and saved as it is then."""
    state, checkpointer = {"messages": [1]}, Checkpointer("memory://", format=format)
    original, calls = checkpointer.serializer.decode, []

    def change_early(data):
        calls.append(data)
        if len(calls) < 3:
            state["messages"].append(1)
        return original(data)

    monkeypatch.setattr(checkpointer.serializer, "decode", change_early)
    checkpointer.save("t", state)
    assert checkpointer.load("t") == {"messages": [1, 1, 1]}


@pytest.mark.parametrize("format", ["json", "msgpack", "arrays", "pickle"])
def test_unsupported_values_are_not_changes(format):
    """Control: a value that the format cannot represent is still reported as unsupported, and not retryable."""
    if format == "arrays":
        pytest.importorskip("numpy")
    with pytest.raises(SerializationError) as caught:
        Checkpointer("memory://", format=format).save("t", {"value": (item for item in ())})
    assert (caught.value.code, caught.value.retryable) == ("serialization.unsupported_type", False)


def test_pieces_are_split_anywhere():
    """Pieces are split into parts of given sizes, across and inside pieces; parts after the end are empty."""
    pieces = [b"ab", b"", b"cdefg", memoryview(b"h")]
    assert [b"".join(part) for part in split_sizes(pieces, [1, 3, 0, 2, 9, 5])] == [b"a", b"bcd", b"", b"ef", b"gh", b""]
    assert [b"".join(part) for part in split_evenly(pieces, 3)] == [b"abc", b"def", b"gh"]
    assert list(split_evenly([], 3)) == []
