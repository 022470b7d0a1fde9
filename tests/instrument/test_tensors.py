"""Tensors of a state: counted, sized and named without reading them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ckpt_observe.instrument import tensors
from ckpt_observe.instrument.tensors import describe_tensors, find_step
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import OTHER


class Tensor:
    """Has the attributes of a tensor, and no content."""

    shape = ()
    dtype = nbytes = None

    def __init__(self, size, dtype="lib.float32"):
        self.nbytes, self.dtype = size, dtype

    def __iter__(self):
        raise AssertionError("the content was read")


class StoredTensor(Tensor):
    """A tensor that is a part of some memory."""

    def __init__(self, memory):
        super().__init__(1)
        self._memory = memory

    def untyped_storage(self):
        return SimpleNamespace(_cdata=id(self._memory), nbytes=lambda: len(self._memory))


def test_state_without_tensors():
    """Nothing is said about it."""
    assert describe_tensors({"messages": ["text"], "n": 1}) == {}
    assert describe_tensors(None) == {}


def test_nested_state():
    """Tensors are found in dicts, lists and tuples. Keys and tensors are named with their bytes, the largest tensors first."""
    state = {"model": {"w": Tensor(70), "b": Tensor(5, "lib.int8")}, "optimizer": [(Tensor(30),)], "note": "text", "step": 3}
    assert describe_tensors(state) == {
        names.TENSORS: 3,
        names.TENSOR_DTYPES: ["float32", "int8"],
        names.TENSOR_NAMES: ["model.w", "optimizer.0.0", "model.b"],
        names.TENSOR_SIZES: [70, 30, 5],
        names.KEY_NAMES: ("model", "optimizer"),
        names.KEY_SIZES: (75, 30),
    }


def test_shared_memory_counts_once():
    """Tensors that share memory are all counted, and their memory belongs to the first one."""
    memory, tensor = bytes(100), Tensor(7)
    attributes = describe_tensors({"a": StoredTensor(memory), "b": StoredTensor(memory), "c": tensor, "d": tensor})
    assert attributes[names.TENSORS] == 4
    assert dict(zip(attributes[names.KEY_NAMES], attributes[names.KEY_SIZES], strict=True)) == {"a": 100, "b": 0, "c": 7, "d": 0}


def test_tensor_without_memory_is_counted():
    """A kind of tensor whose memory is not accessible has no size, and the others are described."""

    class OpaqueTensor(Tensor):
        def untyped_storage(self):
            raise NotImplementedError("Cannot access storage")

    attributes = describe_tensors({"opaque": OpaqueTensor(5), "w": Tensor(7)})
    assert (attributes[names.TENSORS], attributes[names.TENSOR_SIZES]) == (2, [7, 0])


def test_methods_of_containers_are_not_called():
    """A dict or list that loads its values when they are used is not loaded; the tensors that it contains are counted."""

    def load(*_):
        raise AssertionError("the values were loaded")

    class LazyDict(dict):
        items = values = keys = get = __iter__ = __getitem__ = load

    class LazyList(list):
        __iter__ = __getitem__ = load

    state = LazyDict(a=LazyList([Tensor(3)]), step=4)
    assert describe_tensors(state)[names.TENSORS] == 1
    assert find_step(state) == 4


def test_state_that_contains_itself():
    """The search ends."""
    state = {"w": Tensor(1)}
    state["self"] = state
    assert describe_tensors(state)[names.TENSORS] == 1


def test_search_is_bounded(monkeypatch):
    """A huge state is described by its beginning."""
    monkeypatch.setattr(tensors, "_MAX_VALUES", 10)
    assert describe_tensors([Tensor(1) for _ in range(1000)])[names.TENSORS] == 9


@pytest.mark.parametrize("key", ["user@example.com said", "x" * 300])
def test_paths_that_may_be_content_are_not_recorded(key):
    """A key that is not a plain name is not told."""
    assert describe_tensors({key: Tensor(1)})[names.TENSOR_NAMES] == [OTHER]


@pytest.mark.parametrize(
    ("state", "step"), [({"global_step": 5, "step": 1}, 5), ({"step": 2}, 2), ({"step": "2"}, None), ({"step": True}, None), ([5], None)]
)
def test_step(state, step):
    """A training step is an integer under one of the usual keys."""
    assert find_step(state) == step
