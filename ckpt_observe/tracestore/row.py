"""A span as a row of the store, and back. Attributes, events and links are JSON, so that `sqlite3` on the command line can read them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Event, Link, Span

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
"""What a span is, but for its resource."""

FACETS: Final = {
    "outcome": names.OUTCOME,
    "operation": names.OPERATION,
    "task_name": names.TASK_NAME,
    "task_id": names.TASK_ID,
    "session_id": names.SESSION_ID,
    "error_class": names.ERROR_CLASS,
}
"""Columns that repeat an attribute, because traces are found by it."""

_encoder = msgspec.json.Encoder(order="deterministic")
_attributes = msgspec.json.Decoder(dict[str, Any])
_events = msgspec.json.Decoder(tuple[Event, ...])
_links = msgspec.json.Decoder(tuple[Link, ...])


def to_row(span: Span) -> tuple[Any, ...]:
    """Values of `COLUMNS`, then of `FACETS`."""
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
    """The span whose `COLUMNS`, and after them the resource, these are."""
    trace_id, span_id, parent, name, start, end, status, attributes, events, links, resource = row
    return Span(
        trace_id, span_id, parent, name, start, end, status,
        _attributes.decode(attributes), _events.decode(events), _links.decode(links), _attributes.decode(resource),
    )  # fmt: skip


def to_json(value: Any) -> str:
    """Equal values give equal text: keys are in order."""
    return _encoder.encode(value).decode()


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
