"""Values as text for a terminal: durations, sizes, ratios, times and names."""

from __future__ import annotations

import codecs
import os
from datetime import datetime
from typing import Final, TextIO

PLAIN_TEXT: Final = "ckpt_observe.plain_text"
"""Error handler for the output of text: replaces characters that the encoding lacks with similar ones, or else with escapes."""
_SIMILAR: Final = {"│": "|", "├": "|", "└": "`", "─": "-", "µ": "u", "→": ">", "…": "..."}


def format_duration(seconds: float) -> str:
    """Return a short text with a unit: `85 µs`, `4.1 ms`, `1.2 s`, `2m 05s`, `3h 12m`, `5d 06h`."""
    if seconds < 0.000_999_5:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.999_5:
        return f"{_format_digits(seconds * 1e3)} ms"
    if seconds < 59.95:
        return f"{_format_digits(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 172_800:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600:02}h"


def format_size(count: int) -> str:
    """Return bytes in decimal units: `812 B`, `2.0 kB`, `1.4 GB`."""
    if count < 1000:
        return f"{count} B"
    value, larger_units = count / 1000, ["TB", "GB", "MB"]
    unit = "kB"
    while value >= 999.5 and larger_units:
        value, unit = value / 1000, larger_units.pop()
    return f"{_format_digits(value)} {unit}"


def format_ratio(value: float) -> str:
    """Return one decimal, such as `12.6`; below 0.95, one significant digit, such as `0.8` or `0.05`."""
    return f"{value:.1f}" if value >= 0.95 else f"{value:.1g}"


def format_count(count: int, noun: str) -> str:
    """Return a number with its noun: `1 save`, `2 saves`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_time(unix_nano: int) -> str:
    """Return the local time for Unix nanoseconds: `2026-06-30 14:05:09`."""
    return datetime.fromtimestamp(unix_nano / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def printable(text: str) -> str:
    """Escape control characters: a name must not move the cursor, break the line or colour the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    """Return similar characters, or else escapes, for those that cannot be encoded, and where to continue."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_SIMILAR.get(c) or c.encode("ascii", "backslashreplace").decode() for c in characters), error.end


codecs.register_error(PLAIN_TEXT, replace_unencodable)


def wants_colour(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that can show colour and NO_COLOR is not set (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _format_digits(value: float) -> str:
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
