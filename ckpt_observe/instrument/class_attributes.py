"""What the class of a saver, session or store says: its name, and the kind of its store. Encoded once per class."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Final

from msgspec import Raw

from ckpt_observe.record.encoding import encode_attributes
from ckpt_observe.semconv import attributes as names

_STORES: Final = {
    "sqlite": "sqlite", "postgres": "postgresql", "redis": "redis", "mongodb": "mongodb", "mysql": "mysql", "dynamodb": "dynamodb",
    "cosmos": "cosmosdb", "valkey": "valkey", "bedrock": "bedrock", "dapr": "dapr", "vertex": "vertex_ai", "conversations": "openai",
    "json": "file", "memory": "memory",
}  # fmt: skip
"""Kinds of stores, by a word in the name of a class or of its module. `memory` is last: it is also the name of packages."""


@lru_cache(maxsize=256)
def attributes_of_class(system: str, kind: type, store: str = "") -> Raw:
    """Return the encoded attributes that all operations of a class share. `store` is the kind of its store, if the class does not tell."""
    return encode_attributes({names.SYSTEM: system, names.STORE: store or store_of_class(kind), names.SAVER: kind.__name__})


@lru_cache(maxsize=256)
def store_of_class(kind: type) -> str:
    """Return the kind of store that the names of a class and its parents tell. Abstract classes and protocols have no store."""
    parents = [each for each in kind.__mro__ if not inspect.isabstract(each) and not getattr(each, "_is_protocol", False)]
    parts = [part for each in parents for part in (each.__name__.lower(), *each.__module__.lower().split("."))]
    return next((store for word, store in _STORES.items() if any(word in part for part in parts)), "custom")
