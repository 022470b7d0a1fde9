"""Spans as rows of the store, and back. Attributes, events and links are JSON, readable with `sqlite3` on the command line."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span, SpanEvent, SpanLink

COLUMNS: Final = (
    "trace_id",
    "span_id",
    "parent_span_id",
    "name",
    "start_unix_nano",
    "end_unix_nano",
    "status",
    "attributes",
    "events",
    "links",
)
"""The fields of a span, except its resource, which has its own table, and its ancestors, which are not stored."""

FACETS: Final = {
    "outcome": names.OUTCOME,
    "operation": names.OPERATION,
    "task_name": names.TASK_NAME,
    "task_id": names.TASK_ID,
    "session_id": names.SESSION_ID,
    "error_class": names.ERROR_CLASS,
}
"""Columns that repeat an attribute, because traces are searched by it."""

_encoder = msgspec.json.Encoder(order="deterministic")
_attributes = msgspec.json.Decoder(dict[str, Any])
_events = msgspec.json.Decoder(tuple[SpanEvent, ...])
_links = msgspec.json.Decoder(tuple[SpanLink, ...])


def to_row(span: Span) -> tuple[Any, ...]:
    """Return the values of `COLUMNS`, followed by those of `FACETS`."""
    return (
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.name,
        span.start_unix_nano,
        span.end_unix_nano,
        span.status,
        to_json(span.attributes),
        to_json(span.events),
        to_json(span.links),
        *(_text(span.attributes.get(attribute)) for attribute in FACETS.values()),
    )


def from_row(row: tuple[Any, ...]) -> Span:
    """Return the span for a row of `COLUMNS` followed by the resource."""
    trace_id, span_id, parent, name, start, end, status, attributes, events, links, resource = row
    return Span(
        trace_id, span_id, parent, name, start, end, status,
        _attributes.decode(attributes), _events.decode(events), _links.decode(links), _attributes.decode(resource),
    )  # fmt: skip


def to_json(value: Any) -> str:
    """Return JSON with sorted keys, so that equal values give equal text."""
    return _encoder.encode(value).decode()


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
