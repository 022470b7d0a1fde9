"""Types of arguments: times and ages, sizes, durations, counts and parameters. A wrong value is a usage error with an example."""

from __future__ import annotations

import datetime as dt
import json
import math
import re
from argparse import ArgumentTypeError
from typing import Any, Final

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_BYTES: Final = {"": 1, "B": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def positive_count(text: str) -> int:
    """Return a whole number of at least 1."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19 and int(text)):
        raise ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def duration(text: str) -> float:
    """Return the seconds of a duration such as `90s`, `1.5h` or `7d`."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)([smhdw])", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a duration: use a number and s, m, h, d or w, such as 90s, 1.5h or 7d")
    return float(match[1]) * _SECONDS[match[2]]


def positive_duration(text: str) -> float:
    """Return the seconds of a duration that is longer than nothing."""
    seconds = duration(text)
    if not seconds:
        raise ArgumentTypeError(f"{text!r} is not longer than 0 s")
    return seconds


def moment(text: str) -> dt.datetime:
    """Return the time of an age such as `7d`, or an ISO time such as `2026-01-31T12:00Z`. Without a zone it is local, as in tables."""
    try:
        if re.fullmatch(r"[\d.]+[smhdw]", text):
            return dt.datetime.now(dt.UTC) - dt.timedelta(seconds=duration(text))
        return dt.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is neither an age such as 90s, 15m, 1h or 7d nor a time such as 2026-01-31T12:00Z") from None


def reference(text: str) -> str:
    """Return a reference to a checkpoint. A time without a zone is local, as tables print it; for the library it would be UTC."""
    kind, separator, time = text.partition("at:")
    if kind or not separator:
        return text
    try:
        return f"at:{dt.datetime.fromisoformat(time).astimezone().isoformat()}"
    except (ValueError, OverflowError):
        return text  # what resolves it reports the error


def byte_count(text: str) -> int:
    """Return the bytes of a size such as `500`, `10kB`, `1.5MB` or `2GiB`."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,9})?)\s?([kMGT]i?|)B?", text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a size: use bytes or a unit, such as 500, 10kB, 1.5MB or 2GiB")
    return math.ceil(float(match[1]) * _BYTES[match[2]])


def parameter(text: str) -> tuple[str, Any]:
    """Return name and value of `NAME=VALUE`. The value is JSON if it can be read as such, otherwise a string."""
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise ArgumentTypeError(f"{text!r} is not a parameter: write NAME=VALUE, such as lr=0.1")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value
