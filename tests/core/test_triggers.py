"""Triggers, with artificial moments."""

from __future__ import annotations

import pytest

from ckpt_observe.core.runner.triggers import EverySeconds, EverySteps, Moment, Never, OnRequest, When
from ckpt_observe.errors import ConfigError


def moment(steps=0, seconds=0.0, **facts):
    return Moment(step=100, steps_since=steps, seconds_since=seconds, **facts)


@pytest.mark.parametrize(
    ("trigger", "at", "due"),
    [
        (EverySteps(5), moment(4), False),
        (EverySteps(5), moment(5), True),
        (EverySteps(0), moment(1000), False),
        (EverySeconds(60), moment(0, 59.9), False),
        (EverySeconds(60), moment(0, 60), True),
        (EverySteps(5) | EverySeconds(60), moment(1, 61), True),
        (EverySteps(5) | EverySeconds(60), moment(5, 1), True),
        (EverySteps(5) | EverySeconds(60), moment(4, 59), False),
        (EverySteps(5) & EverySeconds(60), moment(5, 59), False),
        (EverySteps(5) & EverySeconds(60), moment(5, 60), True),
        (When(lambda m: m.state["loss"] < 1), moment(state={"loss": 0.5}), True),
        (When(lambda m: m.state["loss"] < 1), moment(state={"loss": 2}), False),
        (OnRequest(), moment(requested=True), True),
        (OnRequest(), moment(), False),
        (Never(), moment(10**9, 1e9, requested=True), False),
    ],
)
def test_trigger_is_due(trigger, at, due):
    """Triggers are due after N steps, after M seconds, by predicate, on request, and in combinations."""
    assert bool(trigger.due(at)) is due


def test_reason_of_a_combined_trigger():
    """A combined trigger returns the reason of the one that was due."""
    assert (EverySteps(5) | EverySeconds(60)).due(moment(0, 60)) == "60 seconds"


@pytest.mark.parametrize(
    "make",
    [
        lambda: EverySteps(-5),
        lambda: EverySteps(1.5),
        lambda: EverySeconds(-1),
        lambda: EverySeconds(float("nan")),
        lambda: EverySeconds("60"),
    ],
)
def test_invalid_intervals_are_refused(make):
    """An interval that would silently save always or never is refused when the trigger is created."""
    with pytest.raises(ConfigError):
        make()
