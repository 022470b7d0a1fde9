"""The steps that a restore throws away."""

from __future__ import annotations

import time

import msgspec
import pytest

from ckpt_observe.delivery.lost_steps import LastSave, LostSteps
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events


def record(operation, at, step, task="run-1", outcome=None):
    begun = [events.BEGIN, "a" * 16, at, events.OPERATION, operation, "b" * 32, "", {names.TASK_ID: task}, {}]
    return msgspec.json.encode([begun, [events.END, "a" * 16, at + 1, {names.STEP: step, names.OUTCOME: outcome}, [], 0]])


def since(steps, *told):
    return msgspec.json.decode(steps.annotate(record(*told)))[-1][3].get(names.STEPS_SINCE)


@pytest.fixture
def steps():
    return LostSteps(lambda _task: None, lambda: None)


@pytest.mark.parametrize("outcome", [None, "error", "interrupted"])
@pytest.mark.parametrize("operation", ["load", "restore"])
def test_since_the_last_save(steps, operation, outcome):
    """Whatever became of the last save: its step is how far the work had come."""
    steps.annotate(record("save", 1, 10))
    steps.annotate(record("save", 2, 17, outcome=outcome))
    assert since(steps, operation, 3, 10) == 7
    assert since(steps, operation, 3, 17) == 0


def test_earlier_run():
    """A save of another process is found in the history; it is asked once for each task."""
    asked = []
    steps = LostSteps(lambda task: asked.append(task) or LastSave(1, 20), lambda: None)
    assert [since(steps, "restore", 5, 15), since(steps, "load", 6, 12)] == [5, 8]
    assert asked == ["run-1"]


def test_last_in_time(steps):
    """A run that was taken back goes on from there: the last save counts, not the one with the highest step."""
    for at, step in ((1, 100), (2, 10), (3, 11)):
        steps.annotate(record("save", at, step))
    assert since(steps, "restore", 4, 10) == 1


@pytest.mark.parametrize("told", [("restore", 5, 3), ("restore", 5, 30, "another"), ("list", 5, 3)])
def test_unknown(steps, told):
    """No save of the task is known, or a later checkpoint than any save we know of: nothing is said rather than something wrong."""
    steps.annotate(record("save", 1, 2))
    assert since(steps, *told) is None


@pytest.mark.parametrize(
    "damaged", [b'{"checkpoint.step"', b'["checkpoint.step"]', b'[["begin"], ["end", "checkpoint.step"]]', b'"checkpoint.step"']
)
def test_hostile_record(steps, damaged):
    """What is not an operation's record passes as it is."""
    assert steps.annotate(damaged) == damaged


def test_dead_process():
    """A restore looks for dead processes first: what one had begun is known, though nobody has collected it yet."""
    steps = LostSteps(lambda _task: None, lambda: steps.annotate(record("save", 2, 9, outcome="interrupted")))
    assert since(steps, "restore", 3, 4) == 5


def test_backlog_takes_one_look():
    """Restores that began before the last look are covered by it; one that began since is looked for again."""
    looks = []
    steps = LostSteps(lambda _task: None, lambda: looks.append(time.time_ns()))
    for number in range(1000):
        steps.annotate(record("restore", number, number))
    assert len(looks) == 1
    steps.annotate(record("restore", time.time_ns(), 5))
    assert len(looks) == 2


def test_bounded(steps):
    """It remembers the latest thousand tasks."""
    for number in range(3000):
        steps.annotate(record("save", number, 1, task=f"run-{number}"))
    assert len(steps._last_saves) == 1024
    assert since(steps, "load", 5000, 0, "run-2999") == 1


def test_said_again_for_the_next_exporter(steps):
    """Where each exporter reads for itself, one that is late hears what the others heard, whatever was saved since."""
    steps.annotate(record("save", 1, 10))
    assert since(steps, "restore", 3, 4) == 6
    steps.annotate(record("save", 4, 20))
    assert since(steps, "restore", 3, 4) == 6


def test_said_already(steps):
    """What the process itself has noted is not worked out again."""
    steps.annotate(record("save", 1, 10))
    told = steps.annotate(record("restore", 3, 4))
    assert LostSteps(lambda _task: LastSave(2, 99), lambda: None).annotate(told) == told
