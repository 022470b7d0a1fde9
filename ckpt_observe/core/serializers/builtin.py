"""The formats json, msgpack and pickle, which need no extra."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from ckpt_observe.core.format.blob import Buffer, require_memory, safe_encode
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.serializers.concurrent_change import concurrent_change_error, is_concurrent_change
from ckpt_observe.core.serializers.keyed_format import KeyedFormat
from ckpt_observe.core.serializers.serializer import Document
from ckpt_observe.errors import SerializationError
from ckpt_observe.support.host_exceptions import raise_host_exception

_NATIVE: frozenset[type] = frozenset({str, int, float, bool, type(None)})
_ALTERED_STARTS = (b"\xc4", b"\xc5", b"\xc6", b"\xd6\xff", b"\xd7\xff", b"\xc7\x0c\xff")
"""First bytes of MessagePack's binary and timestamp values, which may be loaded as another type than was saved."""

_encode_json = safe_encode(msgspec.json.Encoder())
_decode = msgspec.json.Decoder().decode
_LARGE = 1024 * 1024


def _decode_json(data: Buffer) -> Any:
    if len(data) >= _LARGE:  # without enough memory for a string, msgspec crashes the process
        require_memory(2 * len(data))
    return _decode(data)


class JsonSerializer(KeyedFormat):
    """One JSON document on one line, readable with any tool."""

    def __init__(self) -> None:
        super().__init__("json", _encode_json, _decode_json, _NATIVE)

    def join(self, members: Mapping[str, Buffer]) -> tuple[bytes]:
        return (b"{" + b",".join([_json_label(key) + value for key, value in members.items()]) + b"}",)

    def offsets(self, keys: Mapping[str, KeyInfo]) -> dict[str, int]:
        offsets = {}
        position = 0
        for key, info in keys.items():
            offsets[key] = position + 1 + len(_json_label(key))  # 1: the opening brace or a comma
            position = offsets[key] + info.size
        return offsets


@lru_cache(maxsize=1024)
def _json_label(key: str) -> bytes:
    """Return a key and its colon. Cached, because the keys of a program's states are few and the same in every save."""
    return bytes(_encode_json(key)) + b":"


class MsgpackSerializer(KeyedFormat):
    """One MessagePack value: smaller and faster than JSON, and supports bytes. Extension types are refused."""

    def __init__(self) -> None:
        super().__init__("msgpack", safe_encode(msgspec.msgpack.Encoder()), msgspec.msgpack.Decoder().decode, _NATIVE | {bytes})

    def join(self, members: Mapping[str, Buffer]) -> tuple[bytes]:
        pieces: list[Buffer] = [_msgpack_map_start(len(members))]
        for key, value in members.items():
            pieces += (self.encode(key), value)
        return (b"".join(pieces),)

    def alters(self, state: Any, loaded: Any, data: Buffer) -> bool:
        """Return True if a time would be loaded as the same moment in UTC, or a bytearray as bytes: both are equal to what was saved.

        The bytes searched for may also occur by chance in numbers and text, so the state is compared once more without such types.
        """
        text = bytes(data)
        return any(start in text for start in _ALTERED_STARTS) and msgspec.to_builtins(state, builtin_types=(bytes,)) != loaded

    def offsets(self, keys: Mapping[str, KeyInfo]) -> dict[str, int]:
        offsets = {}
        position = len(_msgpack_map_start(len(keys)))
        for key, info in keys.items():
            offsets[key] = position + len(self.encode(key))
            position = offsets[key] + info.size
        return offsets


def _msgpack_map_start(count: int) -> bytes:
    """Return the bytes that start a map with `count` pairs."""
    if count < 16:
        return bytes((0x80 | count,))
    if count < 1 << 16:
        return b"\xde" + count.to_bytes(2, "big")
    return b"\xdf" + count.to_bytes(4, "big")


class PickleSerializer:
    """pickle, protocol 5: any Python object. Used only if requested by name, never as a fallback.

    Loading a pickle runs whatever code it contains. Use it for checkpoints that only your own program can write.
    """

    name = "pickle"

    def dumps(self, state: Any) -> Document:
        try:
            return Document((pickle.dumps(state, protocol=5),))
        except MemoryError:
            raise
        except Exception as error:  # pickling runs code of the state, which may raise anything
            raise_host_exception(error)
            if is_concurrent_change(error):
                raise concurrent_change_error("nothing was saved") from error
            raise SerializationError(f"this state cannot be pickled: {error}") from error

    def loads(self, data: Buffer) -> Any:
        try:
            return pickle.loads(data)  # noqa: S301 - requested by name; see the class
        except MemoryError:
            raise
        except Exception as error:  # unpickling may raise anything
            raise_host_exception(error)
            raise SerializationError(f"this pickle cannot be loaded: {error}", code="serialization.malformed") from error
