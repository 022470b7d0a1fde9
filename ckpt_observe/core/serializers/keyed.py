"""What JSON and msgpack share: each top-level key is encoded by itself, so its size and digest cost nothing extra."""

from __future__ import annotations

from typing import Any

from ckpt_observe.core import digests
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.errors import SerializationError


def key_info(value: Any, encoded: bytes) -> KeyInfo:
    digest = digests.of_key(encoded) if len(encoded) > digests.KEY_SIZE else ""
    return KeyInfo(type(value).__name__, len(encoded), digest)


def is_keyed(state: Any) -> bool:
    """Whether the state is a plain mapping whose keys are all strings."""
    return type(state) is dict and all(type(key) is str for key in state)


def refuse_change(state: Any, decoded: Any, format_name: str) -> None:
    """Raise unless what would be loaded equals what is saved."""
    if decoded != state:
        where = _first_difference(state, decoded, "state")
        if where is not None:
            raise SerializationError(f"{where} would not come back from {format_name} as it is: convert it, or choose another format")


def _first_difference(saved: Any, loaded: Any, path: str) -> str | None:
    if isinstance(saved, float) and isinstance(loaded, float) and saved != saved and loaded != loaded:  # noqa: PLR0124 - not-a-number
        return None
    if isinstance(saved, dict) and isinstance(loaded, dict) and saved.keys() == loaded.keys():
        pairs = ((f"{path}[{key!r}]", saved[key], loaded[key]) for key in saved)
    elif isinstance(saved, list) and isinstance(loaded, list) and len(saved) == len(loaded):
        pairs = ((f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(saved, loaded, strict=True)))
    else:
        return None if saved == loaded else f"{path} ({type(saved).__name__})"
    for where, a, b in pairs:
        if (found := _first_difference(a, b, where)) is not None:
            return found
    return None
