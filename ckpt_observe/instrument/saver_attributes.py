"""Attributes that the tables of several libraries share: what the class of a saver says, and names and sizes of the keys of a state.

The contents of a state are never recorded.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from msgspec import Raw

from ckpt_observe.record import redact
from ckpt_observe.record.encoding import encode_attributes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import LARGEST_KEYS, OTHER

_STORES: Final = {
    "sqlite": "sqlite", "postgres": "postgresql", "redis": "redis", "mongodb": "mongodb", "mysql": "mysql", "dynamodb": "dynamodb",
    "cosmos": "cosmosdb", "valkey": "valkey", "bedrock": "bedrock", "dapr": "dapr", "vertex": "vertex_ai", "conversations": "openai",
    "json": "file", "memory": "memory",
}  # fmt: skip
"""Kinds of stores, by a word in the name of a class or of its module. `memory` is last: it is also the name of packages."""
_MAX_ALTERED: Final = 20
"""How many altered keys a span names at most."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


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


def size_attributes(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the attributes that name the largest keys and their sizes in bytes."""
    if not sizes:
        return {}
    if len(sizes) > LARGEST_KEYS:
        largest = sorted([(size, name) for name, size in sizes.items()], reverse=True)[:LARGEST_KEYS]
        sizes = {name: size for size, name in largest}
    return {names.KEY_NAMES: key_names(tuple(sizes)), names.KEY_SIZES: tuple(sizes.values())}


def altered_keys(keys: Iterable[str]) -> list[str] | None:
    """Return the names of keys that came back altered, for the attribute; None if there are none."""
    return list(key_names(tuple(sorted(keys)[:_MAX_ALTERED]))) or None


@lru_cache(maxsize=256)
def key_names(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys, with OTHER for those that do not look like names, such as addresses: they may be content. Cached."""
    return tuple(text if _NAME.fullmatch(text := redact.text(key)) else OTHER for key in keys)
