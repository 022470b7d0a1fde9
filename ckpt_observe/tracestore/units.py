"""Numbers for people: durations, sizes, moments."""

from __future__ import annotations

from datetime import datetime


def duration(seconds: float) -> str:
    """Two or three digits that matter: `85 µs`, `4.1 ms`, `1.2 s`, `2m 05s`, `3h 12m`."""
    if seconds < 0.000_999_5:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.999_5:
        return f"{_digits(seconds * 1e3)} ms"
    if seconds < 59.95:
        return f"{_digits(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"


def size(count: int) -> str:
    """Bytes in steps of a thousand: `812 B`, `2.0 kB`, `1.4 GB`."""
    if count < 1000:
        return f"{count} B"
    value, larger = count / 1000, ["TB", "GB", "MB"]
    unit = "kB"
    while value >= 999.5 and larger:
        value, unit = value / 1000, larger.pop()
    return f"{_digits(value)} {unit}"


def ratio(value: float) -> str:
    """`12.6`, `0.8`; of a small state in a large header one digit that matters, such as `0.05`."""
    return f"{value:.1f}" if value >= 0.95 else f"{value:.1g}"


def moment(unix_nano: int) -> str:
    """Local time to the second."""
    return datetime.fromtimestamp(unix_nano / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _digits(value: float) -> str:
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
