"""Notes and errors that the agent loop stores in its checkpoints."""

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
    """If the final save fails, too, the first error is raised with a note about it."""

    def full_disk(info, blob):
        raise CapacityError("disk full")

    monkeypatch.setattr(checkpointer.store, "put", full_disk)
    with pytest.raises(RuntimeError, match="out of luck") as caught:
        run_agent("a", count_to(9, fail_at=0), START, checkpointer)
    assert "disk full" in caught.value.__notes__[0]


class UnprintableError(Exception):
    def __str__(self):
        raise KeyError("no text")


class InvalidClassError(Exception):
    error_class = dict


UNDECODABLE = os.fsdecode(b"\xff.txt")


@pytest.mark.parametrize(
    ("error", "message"),
    [(RuntimeError(UNDECODABLE), "?.txt"), (UnprintableError(), "<str() raised KeyError>"), (InvalidClassError("odd"), "odd")],
    ids=["undecodable", "str() raises", "invalid error_class"],
)
def test_any_error_is_stored_and_raised(checkpointer, error, message):
    """Whatever the error is like, the state is saved with what can be read of it, and the error itself is raised."""

    def advance(state, session):
        raise error

    with pytest.raises(type(error)) as caught:
        run_agent("a", advance, START, checkpointer)
    assert caught.value is error
    stored_error = checkpointer.list("a")[0].metadata["error"]
    assert (stored_error["class"], stored_error["type"], stored_error["message"]) == ("unknown", type(error).__qualname__, message)


@dataclasses.dataclass(frozen=True)
class FrozenError(Exception):
    number: int


@pytest.mark.parametrize("state", [0, threading.Lock()], ids=["saved", "not savable"])
def test_error_that_cannot_be_modified_is_raised_unchanged(checkpointer, state):
    """If an error cannot take notes, neither the timing of its step nor a failed last save replaces it."""

    def advance(state, session):
        raise FrozenError(7)

    with pytest.raises(FrozenError):
        run_agent("a", advance, state, checkpointer)


def test_notes_accept_any_text(checkpointer):
    """Text that is not valid UTF-8 is stored with a question mark in its place."""

    def advance(state, session):
        session.notes.rendering(UNDECODABLE, UNDECODABLE, UNDECODABLE)
        session.notes.choice(UNDECODABLE, UNDECODABLE, UNDECODABLE)
        return Done(state)

    run_agent("a", advance, START, checkpointer)
    metadata = checkpointer.list("a")[0].metadata
    assert metadata["renderings"] == [{"template": "?.txt", "before": "?.txt", "after": "?.txt"}]
    assert metadata["choices"] == [{"what": "?.txt", "chosen": "?.txt", "reason": "?.txt"}]


def test_checkpoint_describes_its_run(checkpointer):
    """A checkpoint has timings, resources, choices with reasons, renderings, configuration and the stack of an error."""

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


def test_invalid_configuration_is_refused_before_the_first_step(checkpointer):
    """A configuration that cannot be stored is refused at once, not by the last save when all steps would be lost."""
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


def test_invalid_choice_fails_its_step(checkpointer):
    """A choice that cannot be stored fails its step, and the state before that step is saved."""

    def advance(state, session):
        session.notes.choice("lock", threading.Lock() if state["n"] == 2 else None, "for the test")
        return count_to(5)(state, session)

    with pytest.raises(SerializationError, match="a note cannot hold"):
        run_agent("a", advance, START, checkpointer)
    assert checkpointer.load("a") == {"n": 2, "log": [0, 1]}


def test_stack_trace_is_complete(checkpointer):
    """A stack of 200 frames, as deep as in frameworks, is stored with every frame."""

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
