"""Warns about attributes that a program has probably not meant: a name close to one of the registry, or a value of another type.

Metrics, dashboards and queries look for the names and types of the registry, so such an attribute would be missing there without a word.
"""

from __future__ import annotations

from typing import Any, Final

from ckpt_observe.semconv.attributes import ATTRIBUTES
from ckpt_observe.support.logs import WarningLog

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "int": (int,),
    "double": (float, int),
    "boolean": (bool,),
    "string[]": (list,),
    "int[]": (list,),
}
_SIMILARITY: Final = 0.9
"""Of two names, from 0 to 1: `checkpoint.stpe` and `checkpoint.step` have 0.93, but `checkpoint.shard` and `checkpoint.store` 0.81."""
_MAX_CHECKED: Final = 10_000
_checked: set[tuple[str, type]] = set()
"""Names and types that were checked, so that each is checked once."""
_warnings: Final = WarningLog()


def check_attribute(name: str, value: Any) -> None:
    """Warn once about a wrong name, and once about a wrong type. `value` is the recorded one, which has one of OpenTelemetry's types."""
    kind = type(value)
    if value is None or (name, kind) in _checked or len(_checked) >= _MAX_CHECKED:
        return
    _checked.add((name, kind))
    row = ATTRIBUTES.get(name)
    if row is None:
        if similar := _similar_name(name):
            message = "The attribute %s is recorded, but it is not one of the reference; did you mean %s?"
            _warnings.warn_once(name, message, name, similar)
    elif kind not in _TYPES[row.kind]:
        message = "The attribute %s is recorded as a %s, but metrics and dashboards expect the type %s. Pass a value of that type."
        _warnings.warn_once(f"{name} {kind.__name__}", message, name, kind.__name__, row.kind)


def _similar_name(name: str) -> str | None:
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    return next(iter(get_close_matches(name, ATTRIBUTES, 1, _SIMILARITY)), None)
