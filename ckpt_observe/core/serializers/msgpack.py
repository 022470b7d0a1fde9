"""MessagePack: smaller and faster than JSON, and has bytes. Extension types are refused: data only, never code."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.serializers.keyed import Keyed

_TIMESTAMPS = (b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")
"""How MessagePack's own times begin."""


class MsgpackSerializer(Keyed):
    """One MessagePack value."""

    def __init__(self) -> None:
        native: frozenset[type] = frozenset({str, int, float, bool, type(None), bytes})
        super().__init__("msgpack", msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder().decode, native)

    def join(self, members: Mapping[str, Buffer]) -> tuple[bytes]:
        pieces = [_map_head(len(members))]
        for key, value in members.items():
            pieces += (self.encode(key), bytes(value))
        return (b"".join(pieces),)

    def may_alter(self, data: Buffer) -> bool:
        """A time of MessagePack's own is the same moment, but of another zone: noon in Berlin would come back as eleven in UTC."""
        text = bytes(data)
        return super().may_alter(data) or any(start in text for start in _TIMESTAMPS)

    def offsets(self, keys: Mapping[str, KeyInfo]) -> dict[str, int]:
        found = {}
        position = len(_map_head(len(keys)))
        for key, info in keys.items():
            found[key] = position + len(self.encode(key))
            position = found[key] + info.size
        return found


def _map_head(count: int) -> bytes:
    """The bytes that open a map of that many pairs, as MessagePack defines them."""
    if count < 16:
        return bytes((0x80 | count,))
    if count < 1 << 16:
        return b"\xde" + count.to_bytes(2, "big")
    return b"\xdf" + count.to_bytes(4, "big")
