"""MessagePack: smaller and faster than JSON, and has bytes. Extension types are refused: data only, never code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.serializers.keyed import Keyed

_ALTERED = (b"\xc4", b"\xc5", b"\xc6", b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")
"""How MessagePack's bytes begin, and its own times."""


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

    def alters(self, state: Any, loaded: Any, data: Buffer) -> bool:
        """A time is the same moment, but of another zone: noon in Berlin would come back as eleven in UTC; a bytearray comes back as bytes.

        Numbers and text may hold the same bytes by chance: whether it is so is told by what is left of the state without such values.
        """
        text = bytes(data)
        return any(start in text for start in _ALTERED) and msgspec.to_builtins(state, builtin_types=(bytes,)) != loaded

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
