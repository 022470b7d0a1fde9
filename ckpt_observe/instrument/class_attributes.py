"""What the class of a saver, session or store says: its name, and the kind of its store. Encoded once per class."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from msgspec import Raw

from ckpt_observe.record.encoding import encode_attributes
from ckpt_observe.semconv import attributes as names

_STORES: Final = {
    "sqlite": "sqlite", "postgres": "postgresql", "redis": "redis", "mongodb": "mongodb", "mysql": "mysql", "dynamodb": "dynamodb",
    "cosmos": "cosmosdb", "valkey": "valkey", "bedrock": "bedrock", "dapr": "dapr", "vertex": "vertex_ai", "conversations": "openai",
    "memory": "memory",
}  # fmt: skip
"""Kinds of stores, by a word in the name of a class or of its module. `memory` is last: it is also the name of packages."""


@lru_cache(maxsize=256)
def attributes_of_class(system: str, kind: type, ignored_modules: frozenset[str] = frozenset(), store: str = "") -> Raw:
    """Return the encoded attributes that all operations of a class share. `store` is its kind of store, if that is known.

    `ignored_modules` define base classes, whose names say nothing about the store.
    """
    classes = [parent for parent in kind.__mro__ if parent.__module__ not in ignored_modules]
    parts = [part for parent in classes for part in (parent.__name__.lower(), *parent.__module__.lower().split("."))]
    store = store or next((store for word, store in _STORES.items() if any(word in part for part in parts)), "custom")
    return encode_attributes({names.SYSTEM: system, names.STORE: store, names.SAVER: kind.__qualname__})
