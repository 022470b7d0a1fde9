"""A load of a distributed checkpoint is compared with the metadata of the checkpoint."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ckpt_observe.instrument.torch_metadata import compare_with_metadata
from ckpt_observe.semconv import attributes as names


def saved(dtype="torch.float32", size=(2, 3)):
    return SimpleNamespace(properties=SimpleNamespace(dtype=dtype), size=size)


def tensor(dtype="torch.float32"):
    return SimpleNamespace(dtype=dtype)


METADATA = {"model.w": saved(), "model.b": saved(), "optimizer.m": saved(), "step": SimpleNamespace()}


def compare(state, has_one_rank=True):
    return compare_with_metadata(state, METADATA, has_one_rank=has_one_rank)


def test_complete_load():
    """Nothing differs. Objects that are not tensors count as they are."""
    assert compare({"model.w": tensor(), "model.b": tensor(), "optimizer.m": tensor(), "step": 7}) == {}


def test_program_may_load_some_of_the_keys():
    """What the program does not ask for is not missing, at the top level or below it."""
    assert compare({"model.w": tensor(), "model.b": tensor()}) == {}
    assert compare({"model.w": tensor()}) == {}


def test_types_that_torch_converts():
    """They are named, with both types and the shape."""
    differences = compare({"model.w": tensor("torch.bfloat16"), "model.b": tensor()})
    assert differences == {names.ALTERED_KEYS: ["model.w"], names.ALTERED_TYPES: ["float32[2,3] -> bfloat16[2,3]"]}


def test_key_that_the_checkpoint_lacks():
    """With `allow_partial_load`, it keeps the value that it had before the load."""
    assert compare({"model.w": tensor(), "model.b": tensor(), "model.new": tensor()}) == {names.ALTERED_KEYS: ["model.new"]}


@pytest.mark.parametrize("has_one_rank", [True, False])
def test_renamed_key(has_one_rank):
    """If a key was not saved, the saved one beside it that is not loaded is named, too. With several ranks, another may have loaded it."""
    differences = compare({"model.w": tensor("torch.float16"), "model.bias": tensor()}, has_one_rank)
    assert differences[names.ALTERED_KEYS] == [*(["model.b"] if has_one_rank else []), "model.bias", "model.w"]
