"""Encodes spans as the bytes of OTLP's `ExportTraceServiceRequest`, without I/O and without protobuf.

The bytes are written by hand according to trace.proto, resource.proto and common.proto (v1) of opentelemetry-proto. Protobuf messages take
twice the time (`python -m benchmarks.export`). Each byte constant below starts with the tag of a field: number << 3 | wire type.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from ckpt_observe.exporters.limited_span import LimitedEvent, LimitedLink, LimitedSpan
from ckpt_observe.semconv.spans import EVENT_EXCEPTION, EXCEPTION_MESSAGE, SCHEMA_URL, SCOPE
from ckpt_observe.span import Span, SpanEvent, SpanLink

EMPTY_REQUEST: Final = b"\x0a\x00"
"""A request with one resource and no spans, to try a server. MLflow refuses a request without a resource."""

_fixed64, _double, _times = struct.Struct("<Q").pack, struct.Struct("<d").pack, struct.Struct("<cQcQ").pack
_UINT64: Final = (1 << 64) - 1
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_INTERNAL_SAMPLED: Final = b"\x30\x01\x85\x01\x01\x00\x00\x00"
"""`kind` INTERNAL and the W3C flag `sampled`: only sampled spans are exported, and failures that a setting adds."""
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
    schema_url = _text(b"\x1a", SCHEMA_URL)
    groups: list[bytes] = []
    for start, end in _split_by_resource(spans):
        resource = _field(b"\x0a", _attributes(b"\x0a", spans[start].resource))
        size = len(scope) + sum(map(len, parts[start:end])) + len(schema_url)
        spans_header = b"\x12" + _varint(size)
        # A megabyte, so nothing of it is copied before the end.
        total = len(resource) + len(spans_header) + size + len(schema_url)
        groups += [b"\x0a", _varint(total), resource, spans_header, scope, *parts[start:end], schema_url, schema_url]
    return b"".join(groups)


def _split_by_resource(spans: Sequence[Span]) -> Iterator[tuple[int, int]]:
    """Yield the bounds of each group of adjacent spans with the same resource."""
    start = 0
    resource = spans[0].resource if spans else {}
    for index, span in enumerate(spans):
        # All spans of a process share one object; comparing the contents takes a third of the time of the whole encoding.
        if span.resource is not resource and span.resource != resource:
            yield start, index
            start, resource = index, span.resource
    if spans:
        yield start, len(spans)


def _span(span: Span) -> bytes:
    parts = [
        _ids(span.trace_id, span.span_id, span.parent_span_id),
        _name(span.name),
        _times(b"\x39", span.start_unix_nano, b"\x41", span.end_unix_nano),
    ]
    _add_attributes(parts, b"\x4a", span.attributes)
    if span.trace_state:
        parts.append(_text(b"\x1a", span.trace_state))
    if span.events:
        parts += map(_event, span.events)
    if span.links:
        parts += map(_link, span.links)
    if type(span) is LimitedSpan:
        parts.append(_count(b"\x50", span.dropped_attributes) + _count(b"\x60", span.dropped_events) + _count(b"\x70", span.dropped_links))
    if span.status == "ok":
        parts.append(_STATUS_OK)
    elif span.status == "error":
        parts.append(_field(b"\x7a", _text(b"\x12", status_message(span)) + b"\x18\x02"))
    return _field(b"\x12", b"".join(parts))


@lru_cache(4096)
def _name(name: str) -> bytes:
    return _text(b"\x2a", name) + _INTERNAL_SAMPLED


def status_message(span: Span) -> str:
    """Return the description for an error status: the message of the last `exception` event, or an empty string."""
    messages = (event.attributes.get(EXCEPTION_MESSAGE) for event in reversed(span.events) if event.name == EVENT_EXCEPTION)
    return str(next(messages, None) or "")


def _event(event: SpanEvent) -> bytes:
    body = b"\x09" + _fixed64(event.time_unix_nano) + _text(b"\x12", event.name) + _attributes(b"\x1a", event.attributes)
    if type(event) is LimitedEvent:
        body += _count(b"\x20", event.dropped_attributes)
    return _field(b"\x5a", body)


def _link(link: SpanLink) -> bytes:
    ids = b"\x0a\x10" + _id(link.trace_id, 16) + b"\x12\x08" + _id(link.span_id, 8)
    dropped = _count(b"\x28", link.dropped_attributes) if type(link) is LimitedLink else b""
    return _field(b"\x6a", ids + _attributes(b"\x22", link.attributes) + dropped)


def _attributes(tag: bytes, attributes: Mapping[str, Any]) -> bytes:
    parts: list[bytes] = []
    _add_attributes(parts, tag, attributes)
    return b"".join(parts)


def _add_attributes(parts: list[bytes], tag: bytes, attributes: Mapping[str, Any]) -> None:
    """Append the encoded pairs. What repeats often is cached: short strings, and what precedes a number."""
    texts, prefixes, append = _texts[tag], _prefixes[tag], parts.append
    for key, value in attributes.items():
        kind = type(value)
        if kind is str and len(value) < 64:
            append(texts[key, value])
        elif kind is int and 0 <= value <= _INT64_MAX:
            number = _VARINTS[value] if value < 4096 else _long_varint(value)
            append(prefixes[key, len(number)])
            append(number)
        elif kind is float:
            append(_before_double(tag, key))
            append(_double(value))
        else:
            append(_field(tag, _key(key) + _field(b"\x12", _value(value))))


_CACHE_SIZE: Final = 4096


class _Texts(dict[tuple[str, str], bytes]):
    """Encoded pairs of a key and a text. A miss encodes; a full cache starts again, because most entries are ids that do not repeat."""

    def __init__(self, tag: bytes) -> None:
        self._tag = tag

    def __missing__(self, pair: tuple[str, str]) -> bytes:
        if len(self) >= _CACHE_SIZE:
            self.clear()
        key, value = pair
        encoded = self[pair] = _field(self._tag, _key(key) + _field(b"\x12", _value(value)))
        return encoded


class _Prefixes(dict[tuple[str, int], bytes]):
    """What precedes an integer in an encoded pair, by key and length of the integer in bytes."""

    def __init__(self, tag: bytes) -> None:
        self._tag = tag

    def __missing__(self, pair: tuple[str, int]) -> bytes:
        if len(self) >= _CACHE_SIZE:
            self.clear()
        key, size = pair
        prefix = self[pair] = _before_number(self._tag, key, b"\x18", size)
        return prefix


_TAGS: Final = (b"\x0a", b"\x1a", b"\x22", b"\x4a")
"""Of attributes: of a resource, an event, a link and a span."""
_texts: Final = {tag: _Texts(tag) for tag in _TAGS}
_prefixes: Final = {tag: _Prefixes(tag) for tag in _TAGS}


@lru_cache(4096)
def _before_double(tag: bytes, key: str) -> bytes:
    return _before_number(tag, key, b"\x21", 8)


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


def _ids(trace_id: str, span_id: str, parent_span_id: str) -> bytes:
    """Return the ids of a span with their tags, converted at once."""
    parent = f"2208{parent_span_id}" if parent_span_id else ""
    ids = bytes.fromhex(f"0a10{trace_id}1208{span_id}{parent}")
    # `fromhex` ignores white space, so both the digits and the bytes are counted.
    if len(trace_id) != 32 or len(span_id) != 16 or len(parent) not in (0, 20) or len(ids) != 28 + len(parent) // 2:
        raise ValueError(f"the ids of a span must have 32 and 16 hex digits: {trace_id:.40} {span_id:.40} {parent_span_id:.40}")
    return ids


def _id(digits: str, length: int) -> bytes:
    raw = bytes.fromhex(digits)
    if len(raw) != length:
        raise ValueError(f"an id must have {2 * length} hex digits, not {len(digits)}")
    return raw


def _text(tag: bytes, text: str) -> bytes:
    return _field(tag, text.encode()) if text else b""


def _count(tag: bytes, count: int) -> bytes:
    return tag + _varint(count) if count else b""


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
