"""JSON: readable with any tool."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.serializers.keyed import Keyed


class JsonSerializer(Keyed):
    """One JSON document on one line."""

    def __init__(self) -> None:
        native: frozenset[type] = frozenset({str, int, float, bool, type(None)})
        super().__init__("json", msgspec.json.Encoder().encode, msgspec.json.Decoder().decode, native)

    def join(self, members: Mapping[str, Buffer]) -> bytes:
        return b"{%b}" % b",".join([b"%b:%b" % (self.encode(key), bytes(value)) for key, value in members.items()])

    def offsets(self, keys: Mapping[str, KeyInfo]) -> dict[str, int]:
        found = {}
        position = 0
        for key, info in keys.items():
            found[key] = position + 1 + len(self.encode(key)) + 1  # { or comma, the key, a colon
            position = found[key] + info.size
        return found
