"""What the agent loop tells in its checkpoints, and of the error that ended it."""

from __future__ import annotations

import dataclasses
import os
import threading

import pytest

from ckpt_observe.core.query import Query
from ckpt_observe.core.runner import Done, RunSettings, run_agent
from ckpt_observe.errors import CapacityError, SerializationError
from tests.core.runner.conftest import START, count_to


def test_failed_final_save_does_not_hide_the_error(checkpointer, monkeypatch):
    """L10: when the state cannot be saved either, the first error is raised and says so."""

    def full(info, blob):
        raise CapacityError("disk full")

    monkeypatch.setattr(checkpointer.store, "put", full)
    with pytest.raises(RuntimeError, match="out of luck") as caught:
        run_agent("a", count_to(9, fail_at=0), START, checkpointer)
    assert "disk full" in caught.value.__notes__[0]


class UnspeakableError(Exception):
    def __str__(self):
        raise KeyError("no text")


class MisclassedError(Exception):
    error_class = dict


UNDECODABLE = os.fsdecode(b"\xff.txt")


@pytest.mark.parametrize(
    ("error", "message"),
    [(RuntimeError(UNDECODABLE), "?.txt"), (UnspeakableError(), "<str() raised KeyError>"), (MisclassedError("odd"), "odd")],
    ids=["undecodable", "unspeakable", "misclassed"],
)
def test_no_error_costs_the_run_its_last_checkpoint(checkpointer, error, message):
    """L10: whatever the error is made of, the state is saved with what can be said of it, and it is the one that is raised."""

    def advance(state, session):
        raise error

    with pytest.raises(type(error)) as caught:
        run_agent("a", advance, START, checkpointer)
    assert caught.value is error
    told = checkpointer.list("a")[0].metadata["error"]
    assert (told["class"], told["type"], told["message"]) == ("unknown", type(error).__qualname__, message)


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    number: int


@pytest.mark.parametrize("state", [0, threading.Lock()], ids=["saved", "unsavable"])
def test_an_error_that_cannot_be_written_to_is_raised_as_it_is(checkpointer, state):
    """L10: neither timing its step nor telling of a failed last save puts another in its place."""

    def advance(state, session):
        raise FrozenError(7)

    with pytest.raises(FrozenError):
        run_agent("a", advance, state, checkpointer)


def test_notes_take_any_text(checkpointer):
    """D3: a rendering of what is no UTF-8 is kept with a mark in its place."""

    def advance(state, session):
        session.notes.rendering(UNDECODABLE, UNDECODABLE, UNDECODABLE)
        session.notes.choice(UNDECODABLE, UNDECODABLE, UNDECODABLE)
        return Done(state)

    run_agent("a", advance, START, checkpointer)
    metadata = checkpointer.list("a")[0].metadata
    assert metadata["renderings"] == [{"template": "?.txt", "before": "?.txt", "after": "?.txt"}]
    assert metadata["choices"] == [{"what": "?.txt", "chosen": "?.txt", "reason": "?.txt"}]


def test_checkpoint_tells_about_its_run(checkpointer):
    """D3: timings, resources, choices with reasons, renderings, configuration and the stack of an error are in the checkpoint."""

    def advance(state, session):
        session.notes.choice("model", "small", "cheap enough")
        session.notes.rendering("greeting", "Hello {name}", "Hello Ann" * 1000)
        if state["n"]:
            raise ValueError("no more")
        return {**state, "n": 1}

    with pytest.raises(ValueError, match="no more"):
        run_agent("a", advance, START, checkpointer, settings=RunSettings(configuration={"temperature": 0}))
    metadata = checkpointer.list("a")[0].metadata
    assert metadata["configuration"] == {"temperature": 0}
    assert metadata["choices"][0] == {"what": "model", "chosen": "small", "reason": "cheap enough"}
    assert len(metadata["renderings"][0]["after"]) < 2100
    assert metadata["timings"]["step"]["count"] == 2
    assert metadata["resources"]["memory_peak_bytes"] > 1_000_000
    assert metadata["error"]["type"] == "ValueError"
    assert "in advance" in metadata["error"]["stack"]
    assert len(checkpointer.find(Query(error_class="unknown"))) == 1


def test_a_configuration_that_cannot_be_kept_is_refused_before_the_first_step(checkpointer):
    """D3: not by the last save, with every step done and none of them kept."""
    visited = []
    with pytest.raises(SerializationError, match="a note cannot hold"):
        run_agent(
            "a",
            lambda state, session: visited.append(state),
            START,
            checkpointer,
            settings=RunSettings(configuration={"lock": threading.Lock()}),
        )
    assert visited == []


def test_a_choice_that_cannot_be_kept_is_refused_where_it_is_made(checkpointer):
    """D3: it fails its step, and the state before that is saved."""

    def advance(state, session):
        session.notes.choice("lock", threading.Lock() if state["n"] == 2 else None, "to show it")
        return count_to(5)(state, session)

    with pytest.raises(SerializationError, match="a note cannot hold"):
        run_agent("a", advance, START, checkpointer)
    assert checkpointer.load("a") == {"n": 2, "log": [0, 1]}


def test_stack_trace_is_whole(checkpointer):
    """D3: a stack as deep as frameworks make them is kept with every frame."""

    def descend(depth):
        if not depth:
            raise ValueError("deep")
        return climb(depth)

    def climb(depth):
        return descend(depth - 1)

    with pytest.raises(ValueError, match="deep"):
        run_agent("a", lambda state, session: descend(100), START, checkpointer)
    stack = checkpointer.list("a")[0].metadata["error"]["stack"]
    assert (stack.count("in descend"), stack.count("in climb")) == (101, 100)
