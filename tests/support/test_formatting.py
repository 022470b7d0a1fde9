"""Formatting of durations, sizes and ratios."""

from __future__ import annotations

import pytest

from ckpt_observe.support.formatting import format_duration, format_ratio, format_size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"), (0.000_085, "85 µs"), (0.000_999_6, "1.0 ms"), (0.0041, "4.1 ms"), (0.123_4, "123 ms"), (0.9996, "1.0 s"),
        (1.23, "1.2 s"), (59.96, "1m 00s"), (125, "2m 05s"), (3599.6, "1h 00m"), (11_520, "3h 12m"),
        (172_799, "47h 59m"), (172_799.6, "2d 00h"), (2_592_000, "30d 00h"),
    ],
)  # fmt: skip
def test_duration_has_its_unit(seconds, text):
    """Durations have few digits, and rounding never gives 1000 ms or 60 s."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (2048, "2.0 kB"),
        (999_999, "1.0 MB"),
        (123_456_789, "123 MB"),
        (14 * 10**17, "1400000 TB"),
    ],
)
def test_size_has_its_unit(count, text):
    """Sizes have few digits and decimal units."""
    assert format_size(count) == text


@pytest.mark.parametrize(
    ("value", "text"), [(12.56, "12.6"), (1.0, "1.0"), (0.96, "1.0"), (0.793, "0.8"), (0.046, "0.05"), (0.0012, "0.001"), (0, "0")]
)
def test_ratio_is_never_rounded_to_zero(value, text):
    """A ratio keeps one significant digit, also if the state is much smaller than its header."""
    assert format_ratio(value) == text
