"""The number of steps that a restore throws away."""

from __future__ import annotations

import time

import msgspec
import pytest

from ckpt_observe.delivery.annotation import Annotator
from ckpt_observe.delivery.lost_steps import LastSave
from ckpt_observe.delivery.save_index import SaveIndex
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events


def record(operation, at, step, task="run-1", outcome=None):
    begin = [events.BEGIN, "a" * 16, at, events.OPERATION, operation, "b" * 32, "", {names.TASK_ID: task}, {}]
    return msgspec.json.encode([begin, [events.END, "a" * 16, at + 1, {names.STEP: step, names.OUTCOME: outcome}, [], 0]])


def annotate(annotator, one_record):
    [annotated] = annotator.annotate([one_record])
    return annotated


def lost_steps(steps, *arguments):
    return msgspec.json.decode(annotate(steps, record(*arguments)))[-1][3].get(names.STEPS_SINCE)


@pytest.fixture
def steps():
    return Annotator(lambda _task: None, SaveIndex(None), lambda: None)


@pytest.mark.parametrize("outcome", [None, "error", "interrupted"])
@pytest.mark.parametrize("operation", ["load", "restore"])
def test_since_the_last_save(steps, operation, outcome):
    """The step of the last save counts, even if that save failed or was interrupted."""
    annotate(steps, record("save", 1, 10))
    annotate(steps, record("save", 2, 17, outcome=outcome))
    assert lost_steps(steps, operation, 3, 10) == 7
    assert lost_steps(steps, operation, 3, 17) == 0


def test_earlier_run():
    """The history knows saves of earlier processes. It is asked once for each task."""
    tasks = []
    steps = Annotator(lambda task: tasks.append(task) or LastSave(1, 20), SaveIndex(None), lambda: None)
    assert [lost_steps(steps, "restore", 5, 15), lost_steps(steps, "load", 6, 12)] == [5, 8]
    assert tasks == ["run-1"]


def test_last_in_time(steps):
    """After a rollback the last save counts, not the one with the highest step."""
    for at, step in ((1, 100), (2, 10), (3, 11)):
        annotate(steps, record("save", at, step))
    assert lost_steps(steps, "restore", 4, 10) == 1


@pytest.mark.parametrize("arguments", [("restore", 5, 3), ("restore", 5, 30, "another"), ("list", 5, 3)])
def test_unknown(steps, arguments):
    """Nothing is reported if no save of the task is known, or if the checkpoint is newer than every known save."""
    annotate(steps, record("save", 1, 2))
    assert lost_steps(steps, *arguments) is None


@pytest.mark.parametrize(
    "damaged", [b'{"checkpoint.step"', b'["checkpoint.step"]', b'[["begin"], ["end", "checkpoint.step"]]', b'"checkpoint.step"']
)
def test_damaged_record(steps, damaged):
    """A damaged record is returned unchanged."""
    assert annotate(steps, damaged) == damaged


def test_dead_process():
    """A restore searches for dead processes first, so that their interrupted saves count."""
    steps = Annotator(lambda _task: None, SaveIndex(None), lambda: annotate(steps, record("save", 2, 9, outcome="interrupted")))
    assert lost_steps(steps, "restore", 3, 4) == 5


def test_backlog_needs_one_search():
    """One search covers all restores that started before it. A later restore searches again."""
    searches = []
    steps = Annotator(lambda _task: None, SaveIndex(None), lambda: searches.append(time.time_ns()))
    for number in range(1000):
        annotate(steps, record("restore", number, number))
    assert len(searches) == 1
    annotate(steps, record("restore", time.time_ns(), 5))
    assert len(searches) == 2


def test_bounded(steps):
    """The latest 1024 tasks are remembered."""
    for number in range(3000):
        annotate(steps, record("save", number, 1, task=f"run-{number}"))
    assert len(steps._lost_steps._last_saves) == 1024
    assert lost_steps(steps, "load", 5000, 0, "run-2999") == 1


def test_same_answer_for_every_exporter(steps):
    """An exporter that reads the record later gets the same number, even if there was another save meanwhile."""
    annotate(steps, record("save", 1, 10))
    assert lost_steps(steps, "restore", 3, 4) == 6
    annotate(steps, record("save", 4, 20))
    assert lost_steps(steps, "restore", 3, 4) == 6


def test_record_with_lost_steps(steps):
    """A number that is already in the record is not computed again."""
    annotate(steps, record("save", 1, 10))
    annotated = annotate(steps, record("restore", 3, 4))
    assert annotate(Annotator(lambda _task: LastSave(2, 99), SaveIndex(None), lambda: None), annotated) == annotated


def test_parts_of_a_task_count_their_own_steps(steps):
    """A save in a namespace, such as a subgraph, does not count for the task, whose steps are others."""
    annotate(steps, record("save", 1, 10))
    subgraph = msgspec.json.decode(record("save", 2, 17))
    subgraph[0][7][names.NAMESPACE] = "child"
    annotate(steps, msgspec.json.encode(subgraph))
    assert lost_steps(steps, "restore", 3, 10) == 0
