"""Encodes spans as the bytes of OTLP's `ExportTraceServiceRequest`, without I/O and without protobuf.

The bytes are written by hand according to trace.proto, resource.proto and common.proto (v1) of opentelemetry-proto. Protobuf messages take
twice the time (`python -m benchmarks.export`). Each byte constant below starts with the tag of a field: number << 3 | wire type.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

from ckpt_observe.semconv.spans import EVENT_EXCEPTION, EXCEPTION_MESSAGE
from ckpt_observe.span import Span, SpanEvent, SpanLink

SCOPE: Final = "ckpt_observe"

_fixed64, _double = struct.Struct("<Q").pack, struct.Struct("<d").pack
_UINT64: Final = (1 << 64) - 1
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_INTERNAL_SAMPLED: Final = b"\x30\x01\x85\x01\x01\x00\x00\x00"
"""`kind` INTERNAL and the W3C flag `sampled`: only sampled spans are recorded."""
_STATUS_OK: Final = b"\x7a\x02\x18\x01"


def encode_requests(spans: Sequence[Span], version: str, limit: int) -> Iterator[tuple[bytes, Sequence[Span]]]:
    """Yield requests of at most about `limit` bytes, each with its spans, in order. A larger span gets its own request.

    Raises ValueError, TypeError or struct.error for a value that OTLP cannot represent.
    """
    parts: list[bytes] = []
    first = size = 0
    for index, span in enumerate(spans):
        part = _span(span)
        if parts and size + len(part) > limit:
            yield _request(spans[first:index], parts, version), spans[first:index]
            parts, first, size = [], index, 0
        parts.append(part)
        size += len(part)
    if parts:
        yield _request(spans[first:], parts, version), spans[first:]


def encode(spans: Sequence[Span], version: str) -> bytes:
    """Return all spans as one request."""
    return _request(spans, [_span(span) for span in spans], version)


def _request(spans: Sequence[Span], parts: Sequence[bytes], version: str) -> bytes:
    scope = _field(b"\x0a", _text(b"\x0a", SCOPE) + _text(b"\x12", version))
    groups, start = [], 0
    for resource, group in groupby(spans, key=lambda span: span.resource):
        count = sum(1 for _ in group)
        resource_field = _field(b"\x0a", b"".join(_attributes(b"\x0a", resource)))
        groups.append(_field(b"\x0a", resource_field + _field(b"\x12", scope + b"".join(parts[start : start + count]))))
        start += count
    return b"".join(groups)


def _span(span: Span) -> bytes:
    parent = span.parent_span_id
    body = [
        b"\x0a\x10", _id(span.trace_id, 16),
        b"\x12\x08", _id(span.span_id, 8),
        _text(b"\x1a", span.trace_state) if span.trace_state else b"",
        b"\x22\x08" + _id(parent, 8) if parent else b"",
        _name(span.name), b"\x39", _fixed64(span.start_unix_nano), b"\x41", _fixed64(span.end_unix_nano),
        *_attributes(b"\x4a", span.attributes),
    ]  # fmt: skip
    if span.events:
        body += map(_event, span.events)
    if span.links:
        body += map(_link, span.links)
    if span.status == "ok":
        body.append(_STATUS_OK)
    elif span.status == "error":
        body.append(_field(b"\x7a", _text(b"\x12", status_message(span)) + b"\x18\x02"))
    return _field(b"\x12", b"".join(body))


@lru_cache(4096)
def _name(name: str) -> bytes:
    return _text(b"\x2a", name) + _INTERNAL_SAMPLED


def status_message(span: Span) -> str:
    """Return the description for an error status: the message of the last `exception` event, or an empty string."""
    messages = (event.attributes.get(EXCEPTION_MESSAGE) for event in reversed(span.events) if event.name == EVENT_EXCEPTION)
    return str(next(messages, None) or "")


def _event(event: SpanEvent) -> bytes:
    body = b"\x09" + _fixed64(event.time_unix_nano) + _text(b"\x12", event.name) + b"".join(_attributes(b"\x1a", event.attributes))
    return _field(b"\x5a", body)


def _link(link: SpanLink) -> bytes:
    ids = b"\x0a\x10" + _id(link.trace_id, 16) + b"\x12\x08" + _id(link.span_id, 8)
    return _field(b"\x6a", ids + b"".join(_attributes(b"\x22", link.attributes)))


def _attributes(tag: bytes, attributes: Mapping[str, Any]) -> list[bytes]:
    """Return the encoded pairs. What repeats often is cached: short strings, and what precedes a number."""
    parts = []
    for key, value in attributes.items():
        kind = type(value)
        if kind is str and len(value) < 64:
            parts.append(_short_pair(tag, key, value))
        elif kind is int and 0 <= value < len(_VARINTS):
            number = _VARINTS[value]
            parts.append(_before_number(tag, key, b"\x18", len(number)) + number)
        elif kind is float:
            parts.append(_before_number(tag, key, b"\x21", 8) + _double(value))
        else:
            parts.append(_field(tag, _key(key) + _field(b"\x12", _value(value))))
    return parts


@lru_cache(4096)
def _short_pair(tag: bytes, key: str, value: str) -> bytes:
    return _field(tag, _key(key) + _field(b"\x12", _value(value)))


@lru_cache(4096)
def _before_number(tag: bytes, key: str, kind: bytes, size: int) -> bytes:
    """Return what precedes a number of `size` bytes in an encoded pair. `kind` is the tag of the number."""
    return _field(tag, _key(key) + _field(b"\x12", kind + bytes(size)))[:-size]


@lru_cache(4096)
def _key(key: str) -> bytes:
    return _text(b"\x0a", key)


def _value(value: Any) -> bytes:
    """Return the value as an encoded AnyValue. Integers of more than 64 bits become strings.

    Only None is an AnyValue without a field, which means "no value"; empty strings are written.
    """
    kind = type(value)
    if kind is str:
        return _field(b"\x0a", value.encode())
    if kind is int:
        if not _INT64_MIN <= value <= _INT64_MAX:
            return _field(b"\x0a", str(value).encode())
        return b"\x18" + _varint(value & _UINT64)
    if kind is float:
        return b"\x21" + _double(value)
    if kind is bool:
        return b"\x10\x01" if value else b"\x10\x00"
    if kind is list or kind is tuple:
        return _field(b"\x2a", b"".join(_field(b"\x0a", _value(item)) for item in value))
    if value is None:
        return b""
    raise TypeError(f"an attribute cannot have the type {kind.__name__}")


def _id(digits: str, length: int) -> bytes:
    raw = bytes.fromhex(digits)
    if len(raw) != length:
        raise ValueError(f"an id must have {2 * length} hex digits, not {len(digits)}")
    return raw


def _text(tag: bytes, text: str) -> bytes:
    return _field(tag, text.encode()) if text else b""


def _field(tag: bytes, body: bytes) -> bytes:
    return tag + _varint(len(body)) + body


def _varint(number: int) -> bytes:
    return _VARINTS[number] if number < 4096 else _long_varint(number)


def _long_varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_VARINTS: Final = [_long_varint(number) for number in range(4096)]
