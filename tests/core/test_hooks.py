"""Hooks."""

from __future__ import annotations

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import CheckpointNotFoundError


def test_hooks_are_told_before_and_after_every_operation():
    """K6: with task, id, step, status and time, before and after save, load, restore and delete."""
    events = []
    checkpointer = Checkpointer("memory://", hooks=[events.append])
    info = checkpointer.save("agent", {"n": 1}, step=3, status="paused")
    checkpointer.load("agent")
    checkpointer.restore("agent", info.id)
    checkpointer.delete("agent", info.id)
    assert [(event.moment, event.operation) for event in events] == [
        (moment, operation) for operation in ("save", "load", "restore", "delete") for moment in ("before", "after")
    ]
    before, after = events[:2]
    assert (before.task, before.id, before.step, before.status) == ("agent", info.id, 3, "paused")
    assert before.time <= after.time
    assert after.info == info


def test_failure_is_told():
    """A failed operation tells its hooks the error, and raises it unchanged."""
    events = []
    with pytest.raises(CheckpointNotFoundError) as caught:
        Checkpointer("memory://", hooks=[events.append]).load("agent")
    assert [event.moment for event in events] == ["before", "failed"]
    assert events[1].error is caught.value


def test_failing_hook_never_fails_a_save(caplog):
    """K6: a hook that raises is logged, the others are told, and the save succeeds."""
    seen = []

    def broken(event):
        raise RuntimeError("mine")

    checkpointer = Checkpointer("memory://", hooks=[broken, seen.append])
    checkpointer.save("agent", {"n": 1})
    assert checkpointer.load("agent") == {"n": 1}
    assert len(seen) == 4
    assert "mine" in caplog.text


def test_batch_is_saved_like_any_other():
    """K5, K6: hooks hear of each checkpoint of a batch, retention follows it, and each has the one before it for a parent."""
    events = []
    checkpointer = Checkpointer("memory://", keep_last=2, hooks=[events.append])
    for n in range(3):
        with checkpointer.batch() as batch:
            first, second = batch.save("t", 1, step=2 * n), batch.save("t", 2, step=2 * n + 1)
        assert second.parent == first.id
    assert [info.step for info in checkpointer.list("t")] == [5, 4]
    assert [event.step for event in events if (event.moment, event.operation) == ("after", "save")] == [0, 1, 2, 3, 4, 5]


def test_hooks_are_told_what_retention_removes():
    """K5, K6: a checkpoint that goes by retention is as gone as one that was deleted, and hooks hear of both."""
    events = []
    checkpointer = Checkpointer("memory://", keep_last=1, hooks=[events.append])
    first = checkpointer.save("t", 1)
    checkpointer.save("t", 2)
    assert [(event.moment, event.id) for event in events if event.operation == "delete"] == [("before", first.id), ("after", first.id)]


def test_what_somebody_else_removed_is_no_failure_and_told_once():
    """K5, K6: retention that finds a checkpoint gone already has nothing more to do with it: no failed delete, and none at the next save."""
    events = []
    checkpointer = Checkpointer("memory://", keep_last=1, hooks=[events.append])
    checkpointer.save("t", 0, id="first")
    checkpointer.store.delete("t", "first")
    for n in range(3):
        checkpointer.save("t", n, id=f"c{n}")
    assert [(event.moment, event.id) for event in events if event.operation == "delete"] == [
        (moment, id) for id in ("first", "c0", "c1") for moment in ("before", "after")
    ]
