"""What may be written down: limits and redaction, applied before a line is kept, not only before it is sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

from ckpt_observe.semconv.attributes import ATTRIBUTES

MAX_TEXT: Final = 2000
"""Characters of one value. OpenTelemetry has no limit: a 10 MB attribute is kept whole there."""
MAX_ATTRIBUTES: Final = 64
MAX_ITEMS: Final = 32
HIDDEN: Final = "[redacted]"

_SECRET_KEY = re.compile(r"passw|secret|token|api[_-]?key|authorization|credential|private[_-]?key|cookie", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"(?P<before>://)[^/\s@]+@"  # user:password@ of a URL
    r"|(?P<name>\b(?:password|passwd|pwd|secret|token|api[_-]?key|authorization)\b[\"']?\s*[=:]\s*[\"']?)(?:bearer\s+)?[^\s\"',;&]+"
    r"|\bbearer\s+[\w.~+/-]+=*"
    r"|\b(?:sk|pk|ghp|gho|xox[bap]|AKIA|ASIA)[-_]?[A-Za-z0-9_-]{12,}",
    re.IGNORECASE,
)

known_keys = set(ATTRIBUTES)
"""Keys that hold no secret by their name: the registry's, and those looked at before (at most 10,000)."""


def text(value: str, limit: int = MAX_TEXT) -> str:
    """Without secrets, and not too long."""
    if len(value) > 8 * limit:
        value = value[: 8 * limit]  # bounded work on a hostile value
    clean = _SECRET_TEXT.sub(lambda match: (match["before"] or match["name"] or "") + HIDDEN + ("@" if match["before"] else ""), value)
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def checked(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The attributes themselves if all their names are known, else a copy without what looks like a secret by its name."""
    return given if given.keys() <= known_keys else attributes(given)


def attributes(given: Mapping[str, Any], length: int = MAX_TEXT, count: int = MAX_ATTRIBUTES) -> dict[str, Any]:
    """Attributes as they may be kept: few, short, of OpenTelemetry's types, without secrets."""
    clean: dict[str, Any] = {}
    for key, value in islice(given.items(), count):
        name = text(str(key), length)
        if name not in known_keys and _SECRET_KEY.search(name):
            clean[name] = HIDDEN
            continue
        if len(known_keys) < 10_000:
            known_keys.add(name)
        clean[name] = _value(value, length)
    return clean


def _value(value: Any, length: int) -> Any:
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int):
        return value if -(1 << 63) <= value < 1 << 63 else str(value)[:length]
    if isinstance(value, str):
        return text(value.encode("utf-8", "replace").decode(), length)
    if isinstance(value, (list, tuple)):
        items = [_value(item, length) for item in value[:MAX_ITEMS]]
        same = len({type(item) for item in items}) <= 1
        return items if same else [str(item) for item in items]
    item = getattr(value, "item", None)  # a NumPy or torch scalar
    if callable(item) and getattr(value, "size", 0) == 1:
        return _value(item(), length)
    return f"<{type(value).__name__}>"  # the type only: content of a state never becomes telemetry
