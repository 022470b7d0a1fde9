"""Encodes events as lines of the journal: JSON, without secrets, and never longer than a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ckpt_observe.record import redact
from ckpt_observe.record.redact import MAX_TEXT
from ckpt_observe.support.host_exceptions import raise_host_exception

LINE_LIMIT: Final = 3800
"""Longest line in bytes; a page has room for 3840."""

_LIMITS: Final = ((MAX_TEXT, redact.MAX_ATTRIBUTES), (256, 32), (64, 16), (32, 8))
"""Characters per value and attributes per map, tried in this order until the line is short enough."""
_AT, _EQUALS, _SPACE = b"@= "
_encode = msgspec.json.Encoder().encode


def encode_attributes(attributes: Mapping[str, Any]) -> msgspec.Raw:
    """Redact and encode attributes that many operations share. Doing it once saves half of the cost of a `begin` line."""
    return msgspec.Raw(_encode(redact.attributes(attributes)))


def encode_line(event: tuple[Any, ...]) -> bytes:
    """Return the event as one JSON line. Never raises, whatever values the host program passed.

    Fast path: a line of at most 2000 bytes has no value above that limit, and a line without `@`, `=` and space has no credentials in a
    URL, no `password=...` and no `Bearer ...`. Each check is one `memchr`: `in` with a number takes a quarter of `find`. A bare key
    contains none of the three, so all text is redacted where it enters: when an operation begins, in `set`, and where names and errors are
    read.
    """
    try:
        data = _encode(event)
        if len(data) <= MAX_TEXT and _AT not in data and _EQUALS not in data and _SPACE not in data:
            return data + b"\n"
    except Exception as error:  # a value that JSON cannot represent; the slow path replaces it
        raise_host_exception(error)
    for length, count in _LIMITS:
        data = _encode([_shorten(part, length, count) for part in event])
        if len(data) < LINE_LIMIT:
            return data + b"\n"
    return _encode([_minimize(part) for part in event]) + b"\n"


def _shorten(part: Any, length: int, count: int) -> Any:
    if isinstance(part, dict):
        return redact.attributes(part, length, count)
    if isinstance(part, msgspec.Raw):
        return part
    if isinstance(part, (list, tuple)):  # phases
        return [_shorten(each, length, count) for each in part]
    return redact.value(part, length)


def _minimize(part: Any) -> Any:
    """Reduce a part of an event to ids, times and outcome, because even the shortest form was too long.

    Phases lose their attributes, and those after the 16th are dropped.
    """
    if isinstance(part, dict | msgspec.Raw):
        return redact.attributes(part, 16, 4) if isinstance(part, dict) else None
    if isinstance(part, (list, tuple)):
        return [_minimize_phase(each) if isinstance(each, (list, tuple)) else _minimize(each) for each in part[:16]]
    return redact.value(part, 32)


def _minimize_phase(phase: list[Any] | tuple[Any, ...]) -> list[Any]:
    return [None if isinstance(field, dict) else redact.value(field, 16) for field in phase]
