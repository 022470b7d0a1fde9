"""Durations, and the windows derived from a site's interval."""

from __future__ import annotations

import pytest

from ckpt_observe.alerts.site import DAY, Site, format_duration, parse_duration
from ckpt_observe.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "length"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1d", 86400), ("2w", 14 * 86400), ("250ms", 0.25)]
)
def test_durations_are_read_and_written(text, length):
    """Durations in Prometheus notation are parsed and formatted."""
    assert parse_duration(text) == length
    assert parse_duration(format_duration(length)) == length


@pytest.mark.parametrize("text", ["", "30", "m", "30 m", "-5m", "1.5h", "5x", "h1", "30mm"])
def test_invalid_duration(text):
    """Anything else is rejected with an example."""
    with pytest.raises(ConfigError, match="use a value such as"):
        parse_duration(text)


@pytest.mark.parametrize(
    "wrong", [{"interval": 0}, {"interval": -1}, {"interval": 32 * DAY}, {"slo": 0}, {"slo": 1}, {"slo": 99}, {"slo": float("nan")}]
)
def test_invalid_site(wrong):
    """The error names the value and gives an example."""
    with pytest.raises(ConfigError, match="such as"):
        Site(**wrong)


@pytest.mark.parametrize("interval", [1, 60, 600, 1800, 21600, 86400, 31 * DAY])
def test_times_follow_from_the_interval(interval):
    """The settle time is shorter than the interval. No window is longer than Prometheus' default retention (15 days)."""
    site = Site(interval=interval)
    assert site.settle_time < site.interval
    assert max(site.window, site.abandoned_after) <= 7 * DAY
    assert site.window <= site.baseline <= 14 * DAY
    assert 0 < site.failure_ratio <= 0.5
