"""How far a run has come, from the steps of its saves."""

from __future__ import annotations

import pytest

from ckpt_observe.query import ObservedOperation, Progress, SavedStep, measure_progress
from ckpt_observe.semconv import attributes as names

SECOND = 1_000_000_000


def save(step, end, total=100, run="run-1", **fields):
    attributes = {names.STEP: step, names.TOTAL_STEPS: total, names.TASK_ID: run}
    return ObservedOperation(
        **{
            "kind": "operation", "name": "save", "trace_id": "1", "span_id": "2", "parent_span_id": "", "start_unix_nano": 0,
            "end_unix_nano": end * SECOND, "outcome": "ok", "attributes": attributes, **fields,
        }
    )  # fmt: skip


def test_time_left_follows_from_the_rate():
    """10 steps in 20 seconds: 80 more take 160. The order of the saves does not matter."""
    steps = [SavedStep.of(save(20, 20)), SavedStep.of(save(10, 0)), SavedStep.of(save(15, 9))]
    assert measure_progress(steps) == Progress(20, 100, 160.0)


def test_only_the_newest_run_counts():
    """The steps of an earlier run of the same task do not change the rate."""
    steps = [SavedStep.of(save(99, 1, run="run-0")), SavedStep.of(save(1, 10)), SavedStep.of(save(2, 12))]
    assert measure_progress(steps) == Progress(2, 100, 196.0)


@pytest.mark.parametrize("saves", [[save(5, 1)], [save(5, 1), save(5, 2)], [save(5, 1), save(3, 2)]])
def test_no_time_left_without_a_rate(saves):
    """One save, or steps that do not grow, give a progress without a time left."""
    assert measure_progress([SavedStep.of(each) for each in saves]).remaining_seconds is None


@pytest.mark.parametrize(
    "operation",
    [save("5", 1), save(5, 1, total="many"), save(5, 1, total=0), save(True, 1), save(5, 1, outcome="error"), save(5, 1, name="load")],
)
def test_what_does_not_count(operation):
    """Failed saves, other operations, and values of another type are left out."""
    assert SavedStep.of(operation) is None


def test_no_saves():
    assert measure_progress([]) is None
