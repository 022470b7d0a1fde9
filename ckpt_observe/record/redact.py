"""What may be written down: limits and redaction, applied before a line is kept, not only before it is sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.attributes import ATTRIBUTES

MAX_TEXT: Final = 2000
"""Characters of one value. OpenTelemetry has no limit: a 10 MB attribute is kept whole there."""
MAX_ATTRIBUTES: Final = 64
MAX_ITEMS: Final = 32
HIDDEN: Final = "[redacted]"

_SECRET_KEY = re.compile(r"passw|secret|token(?!iz)|(?:api|private|access|account)[_-]?key|authorization|credential|cookie", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"(?P<before>://)[^/\s]+@"  # user:password@ of a URL
    r"|(?P<name>(?:password|passwd|pwd|secret|token|(?:api|access|account)[_-]?key|authorization|signature|\bsig)[\"']?\s{0,8}[=:]\s{0,8}[\"']?)"
    r"(?:(?:bearer|basic)\s+)?[^\s\"',;&]+"
    r"|\bbearer\s+[\w.~+/-]+=*"
    r"|\b(?:[sp]k|gh[pousr]|xox[abprs])[-_][\w-]{16,}|\b(?-i:AKIA|ASIA)[A-Z0-9]{12,}"  # keys that say what they are
    r"|\b(?-i:eyJ)[\w-]{8,}\.[\w-]+\.[\w-]*",  # and JSON web tokens
    re.IGNORECASE,
)

_FIRST: Final = {
    name: rank for rank, name in enumerate((names.OUTCOME, names.ERROR_CLASS, names.ERROR_CODE, names.ERROR_TYPE, names.ERROR_PHASE))
}
"""Kept though all else must go: an operation that failed must not look as if it had not."""

_harmless = set(ATTRIBUTES)
"""Keys that hold no secret by their name: the registry's, and those looked at before (at most 10,000)."""


def text(given: str, limit: int = MAX_TEXT) -> str:
    """Without secrets, and not too long."""
    if len(given) > 8 * limit:
        given = given[: 8 * limit]  # bounded work on a hostile value
    given = given.encode("utf-8", "replace").decode()  # half a surrogate pair is no text
    clean = _SECRET_TEXT.sub(lambda match: (match["before"] or match["name"] or "") + HIDDEN + ("@" if match["before"] else ""), given)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def attributes(given: Mapping[Any, Any] | None, length: int = MAX_TEXT, count: int = MAX_ATTRIBUTES) -> dict[str, Any]:
    """Attributes as they may be kept: few, short, of OpenTelemetry's types, without secrets."""
    if not isinstance(given, Mapping):
        return {}
    items: Iterable[tuple[Any, Any]] = given.items()
    if len(given) > count:
        items = islice(sorted(items, key=_rank), count)
    clean: dict[str, Any] = {}
    for key, each in items:
        if key in _harmless:
            clean[key] = value(each, length)
            continue
        name = value(key if isinstance(key, str) else str(key), length)
        secret = _SECRET_KEY.search(name)
        if secret and not (isinstance(each, int | float) and secret[0].lower() == "token"):  # how many tokens is no secret
            clean[name] = HIDDEN
            continue
        if not secret and name == key and len(_harmless) < 10_000:
            _harmless.add(name)
        clean[name] = value(each, length)
    return clean


def _rank(item: tuple[Any, Any]) -> int:
    key = item[0]
    return _FIRST.get(key, len(_FIRST)) if key in ATTRIBUTES else len(_FIRST) + 1


def value(given: Any, length: int = MAX_TEXT) -> Any:
    """One value as it may be kept. Never raises, whatever object it is."""
    try:
        if isinstance(given, (list, tuple)):
            items = [_one(item, length) for item in given[: min(MAX_ITEMS, length // 8)]]
            return items if len({type(item) for item in items}) <= 1 else [str(item) for item in items]
        return _one(given, length)
    except Exception:
        return f"<{type(given).__name__[:64]}>"


def _one(given: Any, length: int) -> Any:
    if given is None or isinstance(given, bool):
        return given
    if isinstance(given, float):
        return float(given)
    if isinstance(given, int):
        return int(given) if -(1 << 63) <= given < 1 << 63 else f"<int of {given.bit_length()} bits>"
    if isinstance(given, str):
        return text(given, length)
    item = getattr(given, "item", None)  # a NumPy or torch scalar
    if callable(item) and getattr(given, "size", 0) == 1 and isinstance(inner := item(), bool | int | float | str):
        return _one(inner, length)
    return f"<{type(given).__name__[:64]}>"  # the type only: content of a state never becomes telemetry
