"""Checkpoints of earlier versions stay readable. The files are never regenerated: a new version adds its own files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpt_observe.core import Checkpointer

STATE = {"step": 3, "words": ["a", "b", "c"] * 5, "pair": (1, "two"), "nothing": None}
GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize("id", ["v1-json", "v1-json-gzip", "v1-msgpack-zstd"])
def test_old_checkpoints_stay_readable(id):
    """A checkpoint of an earlier version is loaded with the same state and header, whatever the settings for new checkpoints."""
    restored = Checkpointer(GOLDEN).restore("golden", id)
    assert restored.state == STATE
    assert (restored.info.step, restored.info.status, restored.info.tags) == (3, "paused", ("kept",))
    assert restored.info.metadata == {"by": "version 1"}


@pytest.mark.parametrize("id", ["v1-arrays", "v1-arrays-by-key"])
def test_old_arrays_stay_readable(id):
    """Arrays of an earlier version are loaded as a whole and by key."""
    numpy = pytest.importorskip("numpy")
    state = Checkpointer(GOLDEN).load("golden", id)
    assert numpy.array_equal(Checkpointer(GOLDEN).open("golden", id)["a"], state["a"])
    assert numpy.array_equal(state["a"], numpy.arange(6, dtype=numpy.float32).reshape(2, 3))
    assert state["a"].dtype == numpy.float32


def test_all_codecs_are_listed_together():
    """One directory may contain checkpoints of all codecs."""
    assert {info.codec for info in Checkpointer(GOLDEN).list("golden")} == {"none", "gzip", "zstd"}
