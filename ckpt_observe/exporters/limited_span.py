"""Applies limits to the spans that servers get. Metrics and the local store are not affected, and have everything.

Attributes of the resource have no limit, as OpenTelemetry's specification asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import structs

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span, SpanEvent, SpanLink
from ckpt_observe.span_limits import SpanLimits

_KEPT_LONGEST: Final = frozenset(
    (names.OPERATION, names.PHASE, names.OUTCOME, names.ERROR_TYPE, names.ERROR_CLASS, names.ERROR_CODE, names.ERROR_PHASE)
)
"""Attributes that are dropped last: an operation that failed must not look as if it had succeeded."""


class LimitedEvent(SpanEvent, frozen=True, gc=False):
    """An event that a limit was applied to."""

    dropped_attributes: int = 0


class LimitedLink(SpanLink, frozen=True, gc=False):
    """A link that a limit was applied to."""

    dropped_attributes: int = 0


class LimitedSpan(Span, frozen=True, gc=False):
    """A span that a limit was applied to, with the numbers of what was dropped."""

    dropped_attributes: int = 0
    dropped_events: int = 0
    dropped_links: int = 0


def limit_spans(spans: Sequence[Span], limits: SpanLimits) -> list[Span]:
    """Return the spans within the limits: usually the same objects. Of too many events and links, the last ones are kept."""
    if limits.attribute_length is not None:
        return [_limit_span(span, limits) for span in spans]
    count = limits.attributes
    return [
        _limit_span(span, limits) if span.events or span.links or len(span.attributes) > count else span  # most spans have neither
        for span in spans
    ]


def _limit_span(span: Span, limits: SpanLimits) -> Span:
    attributes = _limit(span.attributes, limits.attributes, limits.attribute_length)
    events = span.events[max(0, len(span.events) - limits.events) :]
    links = span.links[max(0, len(span.links) - limits.links) :]
    fields = {
        "attributes": attributes,
        "events": tuple([_limit_event(event, limits) for event in events]),
        "links": tuple([_limit_link(link, limits) for link in links]),
        "dropped_attributes": len(span.attributes) - len(attributes),
        "dropped_events": len(span.events) - len(events),
        "dropped_links": len(span.links) - len(links),
    }
    return LimitedSpan(**structs.asdict(span) | fields)


def _limit_event(event: SpanEvent, limits: SpanLimits) -> LimitedEvent:
    attributes = _limit(event.attributes, limits.event_attributes, limits.length)
    return LimitedEvent(event.name, event.time_unix_nano, attributes, len(event.attributes) - len(attributes))


def _limit_link(link: SpanLink, limits: SpanLimits) -> LimitedLink:
    attributes = _limit(link.attributes, limits.link_attributes, limits.length)
    return LimitedLink(link.trace_id, link.span_id, attributes, len(link.attributes) - len(attributes))


def _limit(attributes: dict[str, Any], count: int, length: int | None) -> dict[str, Any]:
    if len(attributes) > count:
        remaining = set(sorted(attributes, key=lambda name: name not in _KEPT_LONGEST)[:count])
        attributes = {name: value for name, value in attributes.items() if name in remaining}
    return attributes if length is None else {name: _cut(value, length) for name, value in attributes.items()}


def _cut(value: Any, length: int) -> Any:
    if type(value) is str:
        return value[:length]
    return [_cut(item, length) for item in value] if isinstance(value, list | tuple) else value
