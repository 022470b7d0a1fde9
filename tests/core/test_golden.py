"""Checkpoints that earlier versions wrote. A file here is never regenerated: a new version adds its own beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_observe.core import Checkpointer

STATE = {"step": 3, "words": ["a", "b", "c"] * 5, "pair": (1, "two"), "nothing": None}
GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize("id", ["v1-json", "v1-json-gzip", "v1-msgpack-zstd"])
def test_old_checkpoints_stay_readable(id):
    """D7: what an earlier version saved loads, whatever this program would save with, and its header says the same."""
    restored = Checkpointer(GOLDEN).restore("golden", id)
    assert restored.state == STATE
    assert (restored.info.step, restored.info.status, restored.info.tags) == (3, "paused", ("kept",))
    assert restored.info.metadata == {"by": "version 1"}


@pytest.mark.parametrize("id", ["v1-arrays", "v1-arrays-by-key"])
def test_old_arrays_stay_readable(id):
    """D7: arrays of an earlier version load, whole and key by key."""
    numpy = pytest.importorskip("numpy")
    state = Checkpointer(GOLDEN).load("golden", id)
    assert numpy.array_equal(Checkpointer(GOLDEN).open("golden", id)["a"], state["a"])
    assert numpy.array_equal(state["a"], numpy.arange(6, dtype=numpy.float32).reshape(2, 3))
    assert state["a"].dtype == numpy.float32


def test_uncompressed_and_compressed_are_neighbours():
    """K4: one directory holds them all, and lists them."""
    assert {info.codec for info in Checkpointer(GOLDEN).list("golden")} == {"none", "gzip", "zstd"}
