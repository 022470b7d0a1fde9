"""Hooks that a Checkpointer calls before and after each operation."""

from __future__ import annotations

import pytest

from ckpt_observe.core import Checkpointer, hooks
from ckpt_observe.errors import CheckpointNotFoundError


def test_hooks_are_called_before_and_after_every_operation():
    """Hooks receive task, id, step, status and time before and after save, load, restore and delete."""
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


def test_hooks_receive_failures():
    """Hooks of a failed operation receive the error, which is raised unchanged."""
    events = []
    with pytest.raises(CheckpointNotFoundError) as caught:
        Checkpointer("memory://", hooks=[events.append]).load("agent")
    assert [event.moment for event in events] == ["before", "failed"]
    assert events[1].error is caught.value


def test_failing_hook_never_fails_a_save(caplog):
    """If a hook raises, it is logged, the other hooks are called, and the save succeeds."""
    events = []

    def broken(event):
        raise RuntimeError("hook failed")

    checkpointer = Checkpointer("memory://", hooks=[broken, events.append])
    checkpointer.save("agent", {"n": 1})
    assert checkpointer.load("agent") == {"n": 1}
    assert len(events) == 4
    assert "hook failed" in caplog.text


def test_failing_hook_is_logged_once(caplog):
    """A hook that raises in every save is logged once for each type of exception, and not in every save; another hook is logged, too."""
    errors = [RuntimeError("first"), RuntimeError("second"), ValueError("third")]

    def broken(event):
        raise errors[event.step]

    def broken_too(event):
        raise errors[event.step]

    checkpointer = Checkpointer("memory://", hooks=[broken, broken_too])
    for step in range(3):
        checkpointer.save("agent", {"n": 1}, step=step)
    messages = [str(record.exc_info[1]) for record in caplog.records]
    assert sorted(messages) == ["first", "first", "third", "third"]


def test_failing_context_provider_is_logged_once(monkeypatch, caplog):
    """A context provider that raises in every save is logged once, and the saves succeed."""
    monkeypatch.setattr(hooks, "providers", [lambda: 1 / 0])
    checkpointer = Checkpointer("memory://")
    for _ in range(3):
        assert checkpointer.save("agent", {}).context == {}
    assert len(caplog.records) == 1


def test_batch_calls_hooks_and_retention():
    """Hooks are called for each checkpoint of a batch, retention applies, and the parent of each is the one before it."""
    events = []
    checkpointer = Checkpointer("memory://", keep_last=2, hooks=[events.append])
    for n in range(3):
        with checkpointer.batch() as batch:
            first, second = batch.save("t", 1, step=2 * n), batch.save("t", 2, step=2 * n + 1)
        assert second.parent == first.id
    assert [info.step for info in checkpointer.list("t")] == [5, 4]
    assert [event.step for event in events if (event.moment, event.operation) == ("after", "save")] == [0, 1, 2, 3, 4, 5]


def test_hooks_receive_removals_by_retention():
    """Hooks receive a delete event for each checkpoint that retention removes."""
    events = []
    checkpointer = Checkpointer("memory://", keep_last=1, hooks=[events.append])
    first = checkpointer.save("t", 1)
    checkpointer.save("t", 2)
    assert [(event.moment, event.id) for event in events if event.operation == "delete"] == [("before", first.id), ("after", first.id)]


def test_checkpoint_removed_by_another_writer_is_reported_once():
    """If retention finds a checkpoint already gone, hooks receive one successful delete, not a failure, and none at the next save."""
    events = []
    checkpointer = Checkpointer("memory://", keep_last=1, hooks=[events.append])
    checkpointer.save("t", 0, id="first")
    checkpointer.store.delete("t", "first")
    for n in range(3):
        checkpointer.save("t", n, id=f"c{n}")
    assert [(event.moment, event.id) for event in events if event.operation == "delete"] == [
        (moment, id) for id in ("first", "c0", "c1") for moment in ("before", "after")
    ]
