"""Operations as rows of the store, and back. A row has an operation, task or other span, and the phases of the operation.

Attributes, phases, events and links are JSON, readable with `sqlite3` on the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.spans import OPERATION_PREFIX
from ckpt_observe.span import Span, SpanEvent, SpanLink
from ckpt_observe.tracestore.operation_filter import ATTRIBUTES, stored_bytes
from ckpt_observe.tracestore.operation_groups import OperationGroup

COLUMNS: Final = (
    *("trace", "resource_id", "span_id", "parent_span_id", "name", "start_unix_nano", "end_unix_nano", "status", "spans"),
    *("attributes", "phases", "events", "links", "stored_bytes", *ATTRIBUTES),
)
READ_COLUMNS: Final = COLUMNS[2:8] + COLUMNS[9:13]
"""What `from_row` needs, besides the id of the trace and the resource."""
_MAX_INTEGER: Final = (1 << 63) - 1
_NAMES: Final = tuple(ATTRIBUTES.values())

_encode = msgspec.json.Encoder().encode
_encode_resource = msgspec.json.Encoder(order="deterministic").encode
_attributes = msgspec.json.Decoder(dict[str, Any])
_events = msgspec.json.Decoder(tuple[SpanEvent, ...])
_links = msgspec.json.Decoder(tuple[SpanLink, ...])


class _StoredPhase(msgspec.Struct, array_like=True):
    """A phase within the row of its operation. Times are relative to the start of the operation; most phases have six fields only."""

    phase: str
    span_id: str
    parent_span_id: str | None
    """None for the operation itself."""
    start: int
    duration: int
    attributes: dict[str, Any] | None
    """Without the phase. Without the outcome too, if there is no further field: it is `ok`."""
    name: str | None = None
    """None: that of the phase. So it is also if the outcome is `ok`, and there are neither events nor links."""
    status: Literal["ok", "error", "unset"] = "ok"
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()


_phases = msgspec.json.Decoder(list[_StoredPhase])


def to_row(group: OperationGroup) -> tuple[Any, ...]:
    """Return the values of `COLUMNS`, except the first two."""
    span, phases = group
    attributes = span.attributes
    size, get = stored_bytes(attributes), attributes.get
    return (
        span.span_id,
        span.parent_span_id,
        span.name,
        span.start_unix_nano,
        span.end_unix_nano,
        span.status,
        1 + len(phases),
        _encode(attributes).decode(),
        _encode([_pack(phase, span) for phase in phases]).decode() if phases else None,
        _encode(span.events).decode() if span.events else None,
        _encode(span.links).decode() if span.links else None,
        size if size is not None and abs(size) <= _MAX_INTEGER else None,
        *[value if (value := get(name)) is None else str(value) for name in _NAMES],
    )


def from_row(trace_id: str, resource: dict[str, Any], row: Sequence[Any]) -> OperationGroup:
    """Return the operation of a row of `READ_COLUMNS`."""
    span_id, parent, name, start, end, status, attributes, phases, events, links = row
    span = Span(
        trace_id, span_id, parent, name, start, end, status, _attributes.decode(attributes),
        _events.decode(events) if events else (), _links.decode(links) if links else (), resource,
    )  # fmt: skip
    return OperationGroup(span, [_unpack(phase, span) for phase in _phases.decode(phases)] if phases else [])


def encode_resource(resource: dict[str, Any]) -> str:
    """Return a resource as JSON with sorted keys, so that equal resources give equal text."""
    return _encode_resource(resource).decode()


def decode_resource(text: str) -> dict[str, Any]:
    """Return the resource that `encode_resource` wrote."""
    return _attributes.decode(text)


def _pack(phase: Span, operation: Span) -> tuple[Any, ...]:
    extra, start = phase.attributes.copy(), phase.start_unix_nano
    kind = extra.pop(names.PHASE)
    parent = None if phase.parent_span_id == operation.span_id else phase.parent_span_id
    offset, duration = start - operation.start_unix_nano, phase.end_unix_nano - start
    is_usual = phase.status == "ok" == extra.get(names.OUTCOME) and phase.name == OPERATION_PREFIX + kind
    if is_usual and not phase.events and not phase.links:
        del extra[names.OUTCOME]
        return kind, phase.span_id, parent, offset, duration, extra or None
    return kind, phase.span_id, parent, offset, duration, extra, phase.name, phase.status, phase.events, phase.links


def _unpack(phase: _StoredPhase, operation: Span) -> Span:
    start = operation.start_unix_nano + phase.start
    usual = {names.PHASE: phase.phase} if phase.name is not None else {names.PHASE: phase.phase, names.OUTCOME: "ok"}
    return Span(
        operation.trace_id,
        phase.span_id,
        operation.span_id if phase.parent_span_id is None else phase.parent_span_id,
        OPERATION_PREFIX + phase.phase if phase.name is None else phase.name,
        start,
        start + phase.duration,
        phase.status,
        {**usual, **(phase.attributes or {})},
        phase.events,
        phase.links,
        operation.resource,
    )
