"""Names and sizes of the top-level keys of a state, as attributes. Their contents are never recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from ckpt_observe.record import redact
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import LARGEST_KEYS, OTHER

_MAX_ALTERED: Final = 20
"""How many altered keys a span names at most."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


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
