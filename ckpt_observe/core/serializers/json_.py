"""JSON: readable with any tool. Carries what JSON can carry, exactly, and refuses the rest (tuples, bytes, sets, NaN...)."""

from __future__ import annotations

from typing import Any

import msgspec

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.serializers.base import Document
from ckpt_observe.core.serializers.keyed import is_keyed, key_info, refuse_change
from ckpt_observe.errors import SerializationError

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class JsonSerializer:
    """One JSON document."""

    name = "json"

    def dumps(self, state: Any) -> Document:
        try:
            document = _keyed(state) if is_keyed(state) else Document((_encode(state),), {})
            decoded = _decode(document.pieces[0])
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise SerializationError(f"this state cannot become JSON: {error}") from error
        refuse_change(state, decoded, "JSON")
        return document

    def loads(self, data: Buffer) -> Any:
        try:
            return _decode(data)
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise SerializationError(f"these bytes are not JSON: {error}", code="serialization.malformed") from error


def _keyed(state: dict[str, Any]) -> Document:
    keys = {}
    members = []
    for key, value in state.items():
        encoded = _encode(value)
        keys[key] = key_info(value, encoded)
        members.append(b"%b:%b" % (_encode(key), encoded))
    return Document((b"{%b}" % b",".join(members),), keys)
