"""From an event to the line that is kept: JSON, short, without secrets, and never larger than a page."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ckpt_observe.record import redact

LINE_LIMIT: Final = 4000
"""Bytes; a page has 4096."""

_encode = msgspec.json.Encoder().encode


def line(event: tuple[Any, ...]) -> bytes:
    """The event as one JSON line.

    Fast for what is common: a line of at most 2000 bytes has no value over that limit, and one without an `@` no credentials in a URL.
    """
    try:
        data = _encode(event)
        if len(data) <= redact.MAX_TEXT and b"@" not in data:
            return data + b"\n"
    except Exception:  # noqa: S110 - something JSON cannot carry; the careful way can
        pass
    return _careful(event)


def _careful(event: tuple[Any, ...]) -> bytes:
    for length, count in ((redact.MAX_TEXT, redact.MAX_ATTRIBUTES), (256, 32), (64, 16), (32, 4)):
        data = _encode([redact.attributes(part, length, count) if isinstance(part, dict) else _short(part, length) for part in event])
        if len(data) < LINE_LIMIT:
            break
    return data + b"\n"


def _short(part: Any, length: int) -> Any:
    return redact.text(part, length) if isinstance(part, str) else part
