"""Caches that keep the most recently used values."""

from __future__ import annotations

from typing import Final, TypeVar

_CAPACITY: Final = 1024
Key = TypeVar("Key")
Value = TypeVar("Value")


def store_recent(cache: dict[Key, Value], key: Key, value: Value) -> None:
    """Store a value as the most recently used one. If the cache is full, remove the least recently used."""
    cache.pop(key, None)
    cache[key] = value
    if len(cache) > _CAPACITY:
        del cache[next(iter(cache))]
