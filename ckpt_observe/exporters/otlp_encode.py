"""Spans as the bytes of OTLP's `ExportTraceServiceRequest`. Pure: no I/O, no protobuf.

The bytes are laid by hand after opentelemetry-proto's trace.proto, resource.proto and common.proto (v1): protobuf messages would take twice
the time (`python -m benchmarks.export`). Each constant below is a field's tag: number << 3 | wire type.
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
"""`kind` INTERNAL and the W3C flag `sampled`: what is not sampled is not recorded."""
_STATUS_OK: Final = b"\x7a\x02\x18\x01"


def requests(spans: Sequence[Span], version: str, limit: int) -> Iterator[tuple[bytes, Sequence[Span]]]:
    """Requests of at most about `limit` bytes, each with the spans in it, in order. A span that is larger than that goes alone.

    Raises ValueError, TypeError or struct.error for a value that OTLP cannot carry.
    """
    parts: list[bytes] = []
    begun = size = 0
    for index, span in enumerate(spans):
        part = _span(span)
        if parts and size + len(part) > limit:
            yield _request(spans[begun:index], parts, version), spans[begun:index]
            parts, begun, size = [], index, 0
        parts.append(part)
        size += len(part)
    if parts:
        yield _request(spans[begun:], parts, version), spans[begun:]


def encode(spans: Sequence[Span], version: str) -> bytes:
    """All of them as one request."""
    return _request(spans, [_span(span) for span in spans], version)


def _request(spans: Sequence[Span], parts: Sequence[bytes], version: str) -> bytes:
    scope = _field(b"\x0a", _text(b"\x0a", SCOPE) + _text(b"\x12", version))
    groups, done = [], 0
    for resource, group in groupby(spans, key=lambda span: span.resource):
        count = sum(1 for _ in group)
        about = _field(b"\x0a", b"".join(_attributes(b"\x0a", resource)))
        groups.append(_field(b"\x0a", about + _field(b"\x12", scope + b"".join(parts[done : done + count]))))
        done += count
    return b"".join(groups)


def _span(span: Span) -> bytes:
    parent = span.parent_span_id
    body = [
        b"\x0a\x10", _id(span.trace_id, 16),
        b"\x12\x08", _id(span.span_id, 8),
        b"\x22\x08" + _id(parent, 8) if parent else b"",
        _text(b"\x2a", span.name), _INTERNAL_SAMPLED,
        b"\x39", _fixed64(span.start_unix_nano), b"\x41", _fixed64(span.end_unix_nano),
        *_attributes(b"\x4a", span.attributes),
    ]  # fmt: skip
    body += map(_event, span.events)
    body += map(_link, span.links)
    if span.status == "ok":
        body.append(_STATUS_OK)
    elif span.status == "error":
        body.append(_field(b"\x7a", _text(b"\x12", status_message(span)) + b"\x18\x02"))
    return _field(b"\x12", b"".join(body))


def status_message(span: Span) -> str:
    """What the exception said: OpenTelemetry's description of an error status."""
    told = (event.attributes.get(EXCEPTION_MESSAGE) for event in reversed(span.events) if event.name == EVENT_EXCEPTION)
    return str(next(told, None) or "")


def _event(event: SpanEvent) -> bytes:
    body = b"\x09" + _fixed64(event.time_unix_nano) + _text(b"\x12", event.name) + b"".join(_attributes(b"\x1a", event.attributes))
    return _field(b"\x5a", body)


def _link(link: SpanLink) -> bytes:
    ids = b"\x0a\x10" + _id(link.trace_id, 16) + b"\x12\x08" + _id(link.span_id, 8)
    return _field(b"\x6a", ids + b"".join(_attributes(b"\x22", link.attributes)))


def _attributes(tag: bytes, attributes: Mapping[str, Any]) -> Iterator[bytes]:
    for key, value in attributes.items():
        short = type(value) is str and len(value) < 64  # most of these have few values, and are remembered
        pair = _short(key, value) if short else _key(key) + _field(b"\x12", _value(value))
        yield tag + _varint(len(pair)) + pair


@lru_cache(4096)
def _short(key: str, value: str) -> bytes:
    return _key(key) + _field(b"\x12", _value(value))


@lru_cache(4096)
def _key(key: str) -> bytes:
    return _text(b"\x0a", key)


def _value(value: Any) -> bytes:
    """An AnyValue. A string is written though it is empty: without a field it would be no value at all."""
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
    raise TypeError(f"an attribute cannot be a {kind.__name__}")


def _id(digits: str, length: int) -> bytes:
    raw = bytes.fromhex(digits)
    if len(raw) != length:
        raise ValueError(f"an id has {2 * length} hex digits, not {len(digits)}")
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
