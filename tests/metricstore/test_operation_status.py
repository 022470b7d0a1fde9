"""The status of a task's operations."""

from __future__ import annotations

import pytest

from ckpt_observe.metricstore.operation_status import Attempt, OperationStatus


def after(*attempts):
    status = OperationStatus()
    for attempt in attempts:
        status.apply(attempt)
    return status


def saves(*ends, **fields):
    return [Attempt(end - 1, end, "ok", **fields) for end in ends]


def test_failures_count_since_the_last_success():
    """Errors and interruptions count, a success resets the count, and cancelled or skipped operations do neither."""
    failing = [Attempt(1, 2, "error"), Attempt(3, 4, "interrupted"), Attempt(5, 6, "cancelled"), Attempt(7, 8, "skipped")]
    assert after(*failing).consecutive_failures == 2
    assert after(*failing, Attempt(9, 10, "ok")).consecutive_failures == 0


def test_late_record_of_an_old_failure_is_not_a_new_failure():
    """The save of a dead process, adopted after a later success of another, does not count as a consecutive failure."""
    status = after(Attempt(10, 20, "ok"), Attempt(1, 5, "interrupted"))
    assert (status.consecutive_failures, status.last_success, status.first_attempt, status.last_attempt) == (0, 20, 1, 10)


def test_late_record_of_an_old_success_does_not_reset_the_count():
    """Failures after that success still count."""
    assert after(Attempt(10, 20, "error"), Attempt(1, 5, "ok")).consecutive_failures == 1


def test_interval_is_known_after_three_gaps():
    """Two gaps are not enough to learn an interval."""
    assert after(*saves(100, 200, 300)).interval == 0
    assert after(*saves(100, 200, 300, 400)).interval == pytest.approx(100)


def test_declared_interval_takes_precedence():
    """An interval that the program declares replaces the learned one."""
    assert after(*saves(100, 200, 300, 400, interval=30.0)).interval == 30


def test_one_outage_at_most_doubles_the_interval():
    """After a weekend without saves, a missing save still raises an alert in time."""
    assert after(*saves(100, 200, 300, 400, 100_000)).interval == pytest.approx(200)


def test_interval_follows_a_change():
    """The learned interval adapts within ten saves."""
    status = after(*saves(*range(0, 6000, 600)), *saves(*range(5460, 6500, 60)))
    assert status.interval == pytest.approx(60, rel=0.2)


def test_ranks_that_save_one_step_count_as_one_save():
    """With eight ranks that save every 1000 s, the interval is 1000 s and not the time between two ranks."""
    attempts = [save for step in range(1, 6) for rank in range(8) for save in saves(1000 * step + rank / 10, save_id=str(step), run_id="r")]
    assert after(*attempts).interval == pytest.approx(1000, rel=0.01)


def test_time_between_two_runs_is_ignored():
    """Intervals are learned within one run."""
    status = after(*saves(100, 200, 300, 400, run_id="monday"), *saves(90_000, 90_100, run_id="tuesday"))
    assert status.interval == pytest.approx(100)
