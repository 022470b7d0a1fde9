"""How deep and how wide a state is, at a cost that does not grow with it."""

from __future__ import annotations

from typing import Any

LIMIT = 1000
"""Values looked at. Counting a large state to its end would cost more than saving it."""

_CONTAINERS = frozenset({dict, list, tuple})


def measure(state: Any) -> tuple[int, int]:
    """Depth of nesting, and number of values: both are at least that where the state has more than LIMIT values."""
    depth, count = 0, 0
    level: list[Any] = [state]
    while level and count < LIMIT:
        depth += 1
        count += len(level)
        below: list[Any] = []
        if not _CONTAINERS.isdisjoint(map(type, level)):  # most values are in a level without any; and this runs in every save
            for value in level:
                kind = type(value)
                if kind is dict:
                    below += value.values()
                elif kind is list or kind is tuple:
                    below += value
        level = below
    return depth, count
