"""Values in msgpack or JSON, described without building them: types and bytes, to a depth.

LangGraph stores objects as msgpack extensions that name a module, a class and its arguments. They are described, never constructed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ckpt_observe.readers.contents import Entry, largest_first

DECODE_ERRORS: Final = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What msgspec raises for invalid bytes. Invalid UTF-8 is a ValueError, an unhashable key a TypeError."""

_NUMPY_ARRAY: Final = 6
_DELTA_SNAPSHOT: Final = 7
DELTA_TYPE: Final = "delta snapshot"
"""Type of a channel whose later values are only in pending writes."""


class Encoding(NamedTuple):
    """How values are encoded."""

    decode: Callable[..., Any]
    kind: Callable[[bytes], str]
    """Returns the Python type of a value from its first byte; `ext` for an extension."""


def describe(encoding: Encoding, name: str, value: bytes, depth: int, *, digest: str = "") -> Entry:
    """Return the entry of an encoded value, with children to `depth` levels below it. Raise one of DECODE_ERRORS if it is invalid."""
    kind = encoding.kind(value)
    size = len(value)
    if kind == "ext":
        return _describe_extension(encoding, name, value, depth, digest)
    if kind == "dict":
        return Entry(name=name, type=kind, size=size, digest=digest, **_describe_items(encoding, _members(encoding, value), depth))
    if kind == "list":
        items = encoding.decode(value, type=list[msgspec.Raw])
        return Entry(name=name, type=kind, size=size, digest=digest, **_describe_items(encoding, dict(enumerate(items)), depth))
    return Entry(name=name, type=kind, size=size, digest=digest)


def _members(encoding: Encoding, value: bytes) -> dict[Any, msgspec.Raw]:
    members: dict[Any, msgspec.Raw] = encoding.decode(value, type=dict[Any, msgspec.Raw])
    return members


def _describe_items(encoding: Encoding, members: Mapping[Any, msgspec.Raw], depth: int) -> dict[str, Any]:
    children = [describe(encoding, str(key), bytes(member), depth - 1) for key, member in members.items()] if depth > 0 else []
    return {"items": len(members), "children": largest_first(children)}


def _describe_extension(encoding: Encoding, name: str, value: bytes, depth: int, digest: str) -> Entry:
    extension = encoding.decode(value, type=msgspec.msgpack.Ext)
    size = len(value)
    if extension.code == _DELTA_SNAPSHOT:
        inner = describe(encoding, name, bytes(extension.data), depth)
        return Entry(name=name, type=DELTA_TYPE, size=size, items=inner.items, digest=digest, children=inner.children)
    try:
        parts = encoding.decode(extension.data, type=list[msgspec.Raw])
        if extension.code == _NUMPY_ARRAY:
            dtype, shape = encoding.decode(parts[0], type=str), encoding.decode(parts[1], type=tuple[int, ...])
            return Entry(name=name, type="numpy.ndarray", size=size, dtype=dtype, shape=shape, digest=digest)
        module, type_name = (encoding.decode(part, type=str) for part in parts[:2])
    except (*DECODE_ERRORS, IndexError):
        return Entry(name=name, type=f"msgpack extension {extension.code}", size=size, digest=digest)
    arguments = describe(encoding, name, bytes(parts[2]), depth) if len(parts) > 2 else None
    return Entry(
        name=name,
        type=f"{module}.{type_name}"[:200],
        size=size,
        digest=digest,
        items=arguments.items if arguments else None,
        children=arguments.children if arguments else (),
    )


def _msgpack_kind(value: bytes) -> str:
    first = value[0] if value else 0xC1
    for limit, kind in ((0x7F, "int"), (0x8F, "dict"), (0x9F, "list"), (0xBF, "str"), (0xC0, "NoneType"), (0xC1, "invalid")):
        if first <= limit:
            return kind
    for limit, kind in ((0xC3, "bool"), (0xC6, "bytes"), (0xC9, "ext"), (0xCB, "float"), (0xD3, "int"), (0xD8, "ext"), (0xDB, "str")):
        if first <= limit:
            return kind
    return "list" if first <= 0xDD else "dict" if first <= 0xDF else "int"


def _json_kind(value: bytes) -> str:
    first = value[:1]
    kinds = {b"{": "dict", b"[": "list", b'"': "str", b"n": "NoneType", b"t": "bool", b"f": "bool"}
    return kinds.get(first) or ("float" if set(value) & set(b".eE") else "int")


MSGPACK: Final = Encoding(msgspec.msgpack.decode, _msgpack_kind)
JSON: Final = Encoding(msgspec.json.decode, _json_kind)
