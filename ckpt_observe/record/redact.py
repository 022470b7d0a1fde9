"""Redaction and limits, applied before a line is written to the journal and not only before it is sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.attributes import ATTRIBUTES

MAX_TEXT: Final = 2000
"""Characters of one value. OpenTelemetry has no such limit and keeps an attribute of 10 MB."""
MAX_ATTRIBUTES: Final = 64
MAX_ITEMS: Final = 32
REDACTED: Final = "[redacted]"

_SECRET_KEY = re.compile(r"passw|secret|token(?!iz)|(?:api|private|access|account)[_-]?key|authorization|credential|cookie", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"(?P<before>://)[^/\s]+@"  # user:password@ of a URL
    r"|(?P<name>(?:password|passwd|pwd|secret|token|(?:api|access|account)[_-]?key|authorization|signature|\bsig)[\"']?\s{0,8}[=:]\s{0,8}[\"']?)"
    r"(?:(?:bearer|basic)\s+)?[^\s\"',;&]+"
    r"|\bbearer\s+[\w.~+/-]+=*"
    r"|\b(?:[sp]k|gh[pousr]|xox[abprs])[-_][\w-]{16,}|\b(?-i:AKIA|ASIA)[A-Z0-9]{12,}"  # keys with a telling prefix
    r"|\b(?-i:eyJ)[\w-]{8,}\.[\w-]+\.[\w-]*",  # JSON web tokens
    re.IGNORECASE,
)

_RANKS: Final = {
    name: rank for rank, name in enumerate((names.OUTCOME, names.ERROR_CLASS, names.ERROR_CODE, names.ERROR_TYPE, names.ERROR_PHASE))
}
"""Attributes that are dropped last: an operation that failed must not look as if it had succeeded."""

_safe_keys = set(ATTRIBUTES)
"""Keys whose name does not suggest a secret: those of the registry, and those checked before (up to 10,000)."""


def text(raw: str, limit: int = MAX_TEXT) -> str:
    """Return the text without secrets, cut to `limit` characters."""
    if len(raw) > 8 * limit:
        raw = raw[: 8 * limit]  # bounds the work on a hostile value
    raw = raw.encode("utf-8", "replace").decode()  # replaces lone surrogates, which UTF-8 cannot represent
    clean = _SECRET_TEXT.sub(lambda match: (match["before"] or match["name"] or "") + REDACTED + ("@" if match["before"] else ""), raw)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def attributes(raw: Mapping[Any, Any] | None, length: int = MAX_TEXT, count: int = MAX_ATTRIBUTES) -> dict[str, Any]:
    """Return attributes without secrets, of OpenTelemetry's types: at most `count`, and texts of at most `length` characters."""
    if not isinstance(raw, Mapping):
        return {}
    items: Iterable[tuple[Any, Any]] = raw.items()
    if len(raw) > count:
        items = islice(sorted(items, key=_rank), count)
    clean: dict[str, Any] = {}
    for key, each in items:
        if key in _safe_keys:
            clean[key] = value(each, length)
            continue
        name = value(key if isinstance(key, str) else str(key), length)
        secret = _SECRET_KEY.search(name)
        if secret and not (isinstance(each, int | float) and secret[0].lower() == "token"):  # a number of tokens is not secret
            clean[name] = REDACTED
            continue
        if not secret and name == key and len(_safe_keys) < 10_000:
            _safe_keys.add(name)
        clean[name] = value(each, length)
    return clean


def _rank(item: tuple[Any, Any]) -> int:
    key = item[0]
    return _RANKS.get(key, len(_RANKS)) if key in ATTRIBUTES else len(_RANKS) + 1


def value(raw: Any, length: int = MAX_TEXT) -> Any:
    """Return a value of one of OpenTelemetry's types, without secrets. Never raises, whatever the object."""
    try:
        if isinstance(raw, (list, tuple)):
            items = [_scalar(item, length) for item in raw[: min(MAX_ITEMS, length // 8)]]
            return items if len({type(item) for item in items}) <= 1 else [str(item) for item in items]
        return _scalar(raw, length)
    except Exception:
        return f"<{type(raw).__name__[:64]}>"


def _scalar(raw: Any, length: int) -> Any:
    if raw is None or isinstance(raw, bool):
        return raw
    if isinstance(raw, float):
        return float(raw)
    if isinstance(raw, int):
        return int(raw) if -(1 << 63) <= raw < 1 << 63 else f"<int of {raw.bit_length()} bits>"
    if isinstance(raw, str):
        return text(raw, length)
    item = getattr(raw, "item", None)  # a NumPy or torch scalar
    if callable(item) and getattr(raw, "size", 0) == 1 and isinstance(inner := item(), bool | int | float | str):
        return _scalar(inner, length)
    return f"<{type(raw).__name__[:64]}>"  # only the type: the content of a state must not become telemetry
