"""JSON: readable with any tool."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.serializers.keyed import Keyed

_encode = msgspec.json.Encoder().encode


class JsonSerializer(Keyed):
    """One JSON document on one line."""

    def __init__(self) -> None:
        native: frozenset[type] = frozenset({str, int, float, bool, type(None)})
        super().__init__("json", _encode, msgspec.json.Decoder().decode, native)

    def join(self, members: Mapping[str, Buffer]) -> tuple[bytes]:
        return (b"{" + b",".join([_label(key) + value for key, value in members.items()]) + b"}",)

    def offsets(self, keys: Mapping[str, KeyInfo]) -> dict[str, int]:
        found = {}
        position = 0
        for key, info in keys.items():
            found[key] = position + 1 + len(_label(key))  # after { or a comma
            position = found[key] + info.size
        return found


@lru_cache(maxsize=1024)
def _label(key: str) -> bytes:
    """A key as it stands before its value. Those of a program's states are few, and the same in every save."""
    return _encode(key) + b":"
