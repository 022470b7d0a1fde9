"""From an event to the line that is kept: JSON, short, without secrets, and never larger than a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ckpt_observe.record import redact

LINE_LIMIT: Final = 3800
"""Bytes; a page has 3840 for lines."""

_LEVELS: Final = ((redact.MAX_TEXT, redact.MAX_ATTRIBUTES), (256, 32), (64, 16), (32, 8))
_AT, _EQUALS, _SPACE = b"@= "
_encode = msgspec.json.Encoder().encode


def prepared(attributes: Mapping[str, Any]) -> msgspec.Raw:
    """Attributes that are the same for many operations, cleaned and encoded once: half of what a `begin` line costs."""
    return msgspec.Raw(_encode(redact.attributes(attributes)))


def line(event: tuple[Any, ...]) -> bytes:
    """The event as one JSON line. Never raises, whatever the host put into it.

    Fast for what is common: a line of at most 2000 bytes has no value over that limit; and one without `@`, `=` and space has no
    credentials in a URL, no `password=...` and no `Bearer ...` (each is one `memchr`: `find` of a number
    costs a third of `in`). A bare key shows none of the three, so names that the host passes are looked at where they enter: `set`,
    `task`, `checkpoint` and the instrumentors.
    """
    try:
        data = _encode(event)
        if len(data) <= redact.MAX_TEXT and data.find(_AT) < 0 and data.find(_EQUALS) < 0 and data.find(_SPACE) < 0:
            return data + b"\n"
    except Exception:  # noqa: S110 - something JSON cannot carry; the careful way can
        pass
    for length, count in _LEVELS:
        data = _encode([_clean(part, length, count) for part in event])
        if len(data) < LINE_LIMIT:
            return data + b"\n"
    return _encode([_least(part) for part in event]) + b"\n"


def _clean(part: Any, length: int, count: int) -> Any:
    if isinstance(part, dict):
        return redact.attributes(part, length, count)
    if isinstance(part, msgspec.Raw):
        return part
    if isinstance(part, (list, tuple)):  # phases
        return [_clean(each, length, count) for each in part]
    return redact.value(part, length)


def _least(part: Any) -> Any:
    """What is left when even the shortest form is too long: ids, times, the outcome; phases lose what they say."""
    if isinstance(part, dict | msgspec.Raw):
        return redact.attributes(part, 16, 4) if isinstance(part, dict) else None
    if isinstance(part, (list, tuple)):
        return [_bare(each) if isinstance(each, (list, tuple)) else _least(each) for each in part[:16]]
    return redact.value(part, 32)


def _bare(phase: list[Any] | tuple[Any, ...]) -> list[Any]:
    return [None if isinstance(fact, dict) else redact.value(fact, 16) for fact in phase]
