"""What a header records about a state: the type of each top-level key, the nesting depth and the number of values.

Digests prove that the bytes are the same. The types also reveal a loaded value that differs from the saved one (a renamed class, a
missing library, a format without tuples), without serializing it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_VALUES = 1000
"""Counting stops at the nesting level that reaches this many values. Counting all of a large state would cost more than saving it."""

_PLAIN = (dict, str, int, float)
_NAMES = {kind: kind.__name__ for kind in (*_PLAIN, bool, list, tuple, type(None))}
"""Nearly all values have one of these types."""
_CONTAINERS = frozenset({dict, list, tuple})


def name_of_type(kind: type) -> str:
    """Return the name of a type. For a subclass of dict, str, int or float, it is the name of the base, as which it is loaded."""
    return _NAMES.get(kind) or next((plain.__name__ for plain in _PLAIN if issubclass(kind, plain)), kind.__name__)


def describe_type(value: Any) -> str:
    """Return the name of a value's type; for an array also its element type and shape."""
    return f"array[{value.dtype}{list(value.shape)}]".replace("torch.", "") if hasattr(value, "dtype") else name_of_type(type(value))


def has_saved_type(saved: str, state: Any, key: str) -> bool:
    """Return whether the loaded state has this key with a value of the saved type."""
    if not isinstance(state, Mapping) or key not in state:
        return False
    value = state[key]
    return saved in (name_of_type(type(value)), describe_type(value))


def measure(state: Any) -> tuple[int, int]:
    """Return nesting depth and number of values in dicts, lists and tuples. Beyond MAX_VALUES values both are lower bounds."""
    depth, count = 0, 0
    level: list[Any] = [state]
    while level and count < MAX_VALUES:
        depth += 1
        count += len(level)
        children: list[Any] = []
        if not _CONTAINERS.isdisjoint(map(type, level)):  # runs in every save, and most levels have no containers
            for value in level:
                kind = type(value)
                if kind is dict:
                    children += value.values()
                elif kind is list or kind is tuple:
                    children += value
        level = children
    return depth, count
