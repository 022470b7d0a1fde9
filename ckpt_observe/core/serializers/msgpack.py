"""MessagePack: smaller and faster than JSON, carries bytes too. Extension types are refused both ways: data only, never code."""

from __future__ import annotations

from typing import Any

import msgspec

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.serializers.base import Document
from ckpt_observe.core.serializers.keyed import is_keyed, key_info, refuse_change
from ckpt_observe.errors import SerializationError

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode


class MsgpackSerializer:
    """One MessagePack value."""

    name = "msgpack"

    def dumps(self, state: Any) -> Document:
        try:
            document = _keyed(state) if is_keyed(state) else Document((_encode(state),), {})
            decoded = _decode(document.pieces[0])
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise SerializationError(f"this state cannot become MessagePack: {error}") from error
        refuse_change(state, decoded, "MessagePack")
        return document

    def loads(self, data: Buffer) -> Any:
        try:
            return _decode(data)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise SerializationError(f"these bytes are not MessagePack: {error}", code="serialization.malformed") from error


def _keyed(state: dict[str, Any]) -> Document:
    keys = {}
    pieces = [_map_head(len(state))]
    for key, value in state.items():
        encoded = _encode(value)
        keys[key] = key_info(value, encoded)
        pieces += (_encode(key), encoded)
    return Document((b"".join(pieces),), keys)


def _map_head(count: int) -> bytes:
    """The byte or bytes that open a map of that many pairs, as MessagePack defines them."""
    if count < 16:
        return bytes((0x80 | count,))
    if count < 1 << 16:
        return b"\xde" + count.to_bytes(2, "big")
    return b"\xdf" + count.to_bytes(4, "big")
