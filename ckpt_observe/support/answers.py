"""Parses answers of servers, which are hostile input. Whatever they contain, nothing but ValueError is raised."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TypeVar

import msgspec

_T = TypeVar("_T")


def decode_json(answer: bytes, kind: type[_T]) -> _T:
    """Return an answer in JSON as a value of this type. Raise ValueError if it is none, such as for invalid UTF-8 or endless nesting."""
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:  # invalid UTF-8 is a ValueError already
        raise ValueError(str(error)) from error


def parse_http_date(text: str) -> float:
    """Return the Unix time of a date in a header. Raise ValueError if it is none."""
    try:
        return parsedate_to_datetime(text).timestamp()
    except (TypeError, OverflowError) as error:  # such as a time zone of 14 digits
        raise ValueError(f"{text[:100]!r} is not a date") from error
