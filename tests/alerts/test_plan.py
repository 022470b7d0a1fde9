"""What a site is like."""

from __future__ import annotations

import pytest

from ckpt_observe.alerts.plan import DAY, Plan, duration, seconds
from ckpt_observe.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "length"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1d", 86400), ("2w", 14 * 86400), ("250ms", 0.25)]
)
def test_durations_are_read_and_written(text, length):
    """As Prometheus writes them, both ways."""
    assert seconds(text) == length
    assert seconds(duration(length)) == length


@pytest.mark.parametrize("text", ["", "30", "m", "30 m", "-5m", "1.5h", "5x", "h1", "30mm"])
def test_no_duration(text):
    """Anything else is refused with an example."""
    with pytest.raises(ConfigError, match="write it as"):
        seconds(text)


@pytest.mark.parametrize(
    "wrong", [{"interval": 0}, {"interval": -1}, {"interval": 32 * DAY}, {"slo": 0}, {"slo": 1}, {"slo": 99}, {"slo": float("nan")}]
)
def test_site_that_cannot_be(wrong):
    """Says which value and what would do."""
    with pytest.raises(ConfigError, match="such as"):
        Plan(**wrong)


@pytest.mark.parametrize("interval", [1, 60, 600, 1800, 21600, 86400, 31 * DAY])
def test_times_follow_from_the_interval(interval):
    """A state settles sooner than the next save comes; the windows rise, and none is longer than what Prometheus keeps by default (15 days)."""
    plan = Plan(interval=interval)
    assert plan.settle < plan.interval
    assert max(plan.window, plan.recent) <= 7 * DAY
    assert plan.window <= plan.past <= 14 * DAY
    assert 0 < plan.ratio <= 0.5
