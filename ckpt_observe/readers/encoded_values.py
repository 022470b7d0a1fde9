"""Values in msgpack or JSON, described without building them: types and bytes, to a depth.

LangGraph stores objects as msgpack extensions that name a module, a class and its arguments. They are described, never constructed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from ckpt_observe.readers.contents import Entry, largest_first

DECODE_ERRORS: Final = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What msgspec raises for invalid bytes. Invalid UTF-8 is a ValueError, an unhashable key a TypeError."""

MAX_ITEMS: Final = 100_000
"""Items of a container that are decoded; those of larger ones are only counted."""
_MAX_VALUES: Final = 500_000
"""Values below the top-level ones that are described for one location."""
_MAX_PARTS: Final = 64
"""Parts of an extension, and dimensions of an array, that are decoded."""
_MAX_SCANNED: Final = 64 * 1024 * 1024
"""Bytes of JSON whose items are counted, which takes about a second for 10 MB. In larger values, all commas count."""
_JSON_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)
_NUMPY_ARRAY: Final = 6
_DELTA_SNAPSHOT: Final = 7
DELTA_TYPE: Final = "delta snapshot"
"""Type of a channel whose later values are only in pending writes."""


class Encoding(NamedTuple):
    """How values are encoded."""

    decode: Callable[..., Any]
    kind: Callable[[bytes], str]
    """Returns the Python type of a value from its first byte; `ext` for an extension."""
    count: Callable[[bytes], int]
    """Returns how many items a container has, or more, without decoding it."""


class ValueBudget:
    """How many values are still described. A state of a few megabytes may have millions, and each takes some hundred bytes of memory."""

    def __init__(self) -> None:
        self.remaining = _MAX_VALUES
        self.is_exceeded = False

    def take(self, count: int) -> bool:
        """Return whether the items of one more container can be described."""
        if count > self.remaining:
            self.is_exceeded = True
            return False
        self.remaining -= count
        return True

    def warnings(self) -> tuple[str, ...]:
        """Return a warning if not all values are described."""
        text = f"not all nested values are shown, because there are more than {_MAX_VALUES:,}, or {MAX_ITEMS:,} in one container"
        return (text,) if self.is_exceeded else ()


def describe(encoding: Encoding, name: str, value: bytes, depth: int, budget: ValueBudget, *, digest: str = "") -> Entry:
    """Return the entry of an encoded value, with children to `depth` levels below it. Raise one of DECODE_ERRORS if it is invalid."""
    kind = encoding.kind(value)
    if kind == "ext":
        return _describe_extension(encoding, name, value, depth, budget, digest)
    items, children = _describe_items(encoding, kind, value, depth, budget) if kind in ("dict", "list") else (None, ())
    return Entry(name=name, type=kind, size=len(value), digest=digest, items=items, children=children)


def _describe_items(encoding: Encoding, kind: str, value: bytes, depth: int, budget: ValueBudget) -> tuple[int | None, tuple[Entry, ...]]:
    """Return the number of items of a container, and the items if they are shown."""
    count = encoding.count(value)
    if count > len(value):
        raise ValueError(f"{count} items in {len(value)} bytes")
    if count > MAX_ITEMS:
        budget.is_exceeded |= depth > 0
        return count if encoding is MSGPACK else None, ()
    members: Mapping[Any, msgspec.Raw] = (
        encoding.decode(value, type=dict[Any, msgspec.Raw])
        if kind == "dict"
        else dict(enumerate(encoding.decode(value, type=list[msgspec.Raw])))
    )
    if depth <= 0 or not budget.take(len(members)):
        return len(members), ()
    return len(members), largest_first(describe(encoding, str(key), bytes(each), depth - 1, budget) for key, each in members.items())


def _describe_extension(encoding: Encoding, name: str, value: bytes, depth: int, budget: ValueBudget, digest: str) -> Entry:
    extension = encoding.decode(value, type=msgspec.msgpack.Ext)
    size = len(value)
    if extension.code == _DELTA_SNAPSHOT:
        inner = describe(encoding, name, bytes(extension.data), depth, budget)
        return Entry(name=name, type=DELTA_TYPE, size=size, items=inner.items, digest=digest, children=inner.children)
    try:
        parts = _decode_few(encoding, bytes(extension.data), list[msgspec.Raw])
        if extension.code == _NUMPY_ARRAY:
            dtype, shape = encoding.decode(parts[0], type=str), _decode_few(encoding, bytes(parts[1]), tuple[int, ...])
            return Entry(name=name, type="numpy.ndarray", size=size, dtype=dtype, shape=shape, digest=digest)
        module, type_name = (encoding.decode(part, type=str) for part in parts[:2])
    except (*DECODE_ERRORS, IndexError):
        return Entry(name=name, type=f"msgpack extension {extension.code}", size=size, digest=digest)
    arguments = describe(encoding, name, bytes(parts[2]), depth, budget) if len(parts) > 2 else None
    return Entry(
        name=name,
        type=f"{module}.{type_name}"[:200],
        size=size,
        digest=digest,
        items=arguments.items if arguments else None,
        children=arguments.children if arguments else (),
    )


def _decode_few(encoding: Encoding, value: bytes, kind: Any) -> Any:
    """Return the items of a container that has few of them, if it is valid."""
    if encoding.count(value) > _MAX_PARTS:
        raise ValueError(f"more than {_MAX_PARTS} items")
    return encoding.decode(value, type=kind)


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


def _msgpack_count(value: bytes) -> int:
    first = value[0] if value else 0
    if 0x80 <= first <= 0x9F:
        return first & 0x0F
    return int.from_bytes(value[1 : 3 if first in (0xDC, 0xDE) else 5], "big") if 0xDC <= first <= 0xDF else 0


def _json_count(value: bytes) -> int:
    most = value.count(b",") + 1
    if most <= MAX_ITEMS or len(value) > _MAX_SCANNED:
        return most
    depth, count = 0, 1
    for match in _JSON_TOKEN.finditer(value):
        first = value[match.start()]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
        elif first in b"," and depth == 1:
            count += 1
    return count


MSGPACK: Final = Encoding(msgspec.msgpack.decode, _msgpack_kind, _msgpack_count)
JSON: Final = Encoding(msgspec.json.decode, _json_kind, _json_count)
