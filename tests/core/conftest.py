"""Fixtures of the tests of the core."""

from __future__ import annotations

import os

import pytest

from ckpt_observe.support import new_files


@pytest.fixture
def state() -> dict[str, object]:
    """A typical agent state of about 2 KB."""
    return {
        "step": 7,
        "conversation": [{"role": "user" if i % 2 else "assistant", "content": f"message {i}: " + "words " * 9} for i in range(16)],
        "memory": {"facts": ["the sky is blue", "water is wet"], "scores": {"a": 0.5, "b": -1.25}},
        "plan": ["read", "think", "write"],
        "budget": {"tokens": 12_000, "dollars": 0.42},
        "status": "running",
        "metadata": {"model": "m-1", "nothing": None, "flag": True},
    }


@pytest.fixture(params=[True, False], ids=["unnamed files", "temporary names"])
def unnamed_files(request, monkeypatch) -> None:
    """Run on a file system with unnamed files, and on one without."""
    if not request.param:
        monkeypatch.setattr(new_files, "_UNNAMED", os.O_WRONLY)
