"""Limits of spans: what is cut, what is dropped, and what the servers are told about it."""

from __future__ import annotations

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ckpt_observe.exporters.laminar_shape import shape
from ckpt_observe.exporters.limited_span import LimitedSpan, limit_spans
from ckpt_observe.exporters.otlp_encoding import encode
from ckpt_observe.span import SpanEvent, SpanLink
from ckpt_observe.span_limits import SpanLimits
from ckpt_observe.testing.spans import make_span

EVENTS = tuple(SpanEvent(f"e{number}", number, {"a": "long", "b": 2}) for number in range(3))
LINKS = tuple(SpanLink(f"{number:032x}", f"{number:016x}", {"a": "long", "b": 2}) for number in range(1, 4))
FAILED = {
    "checkpoint.operation": "save",
    "checkpoint.outcome": "error",
    "mine": "x" * 9,
    "list": ["long", 1, ["nested"]],
    "error.type": "E",
}


def limit_span(span, limits):
    [limited] = limit_spans([span], limits)
    return limited


def message(span):
    return ExportTraceServiceRequest.FromString(encode([span], "1")).resource_spans[0].scope_spans[0].spans[0]


def test_within_limits():
    """A span without events and links that is within the limits is not copied."""
    span = make_span(1, "x", attributes=FAILED)
    assert limit_span(span, SpanLimits()) is span


def test_attribute_count():
    """Attributes beyond the limit are dropped in their order, but what the operation was and how it failed stays; the number is sent."""
    limited = limit_span(make_span(1, "x", attributes=FAILED), SpanLimits(attributes=4))
    assert list(limited.attributes) == ["checkpoint.operation", "checkpoint.outcome", "mine", "error.type"]
    assert message(limited).dropped_attributes_count == 1


def test_attribute_length():
    """Texts are cut, also in lists; the length of texts in events and links is a limit of its own."""
    limited = limit_span(make_span(1, "x", attributes=FAILED, events=EVENTS[:1]), SpanLimits(attribute_length=3, length=2))
    assert (limited.attributes["mine"], limited.attributes["list"]) == ("xxx", ["lon", 1, ["nes"]])
    assert limited.events[0].attributes == {"a": "lo", "b": 2}
    assert message(limited).dropped_attributes_count == 0


@pytest.mark.parametrize("count", [0, 1, 3])
def test_events_and_links(count):
    """The last events and links are kept, as in the SDK; the numbers of all that was dropped are sent."""
    limits = SpanLimits(events=count, links=count, event_attributes=1, link_attributes=0)
    sent = message(limit_span(make_span(1, "x", events=EVENTS, links=LINKS), limits))
    assert [event.name for event in sent.events] == ["e0", "e1", "e2"][3 - count :]
    assert [int(link.span_id.hex(), 16) for link in sent.links] == [1, 2, 3][3 - count :]
    assert (sent.dropped_events_count, sent.dropped_links_count) == (3 - count, 3 - count)
    assert {event.dropped_attributes_count for event in sent.events} <= {1}
    assert {link.dropped_attributes_count for link in sent.links} <= {2}


def test_nothing_dropped():
    """Without a limit that takes effect, the message is that of the span itself."""
    span = make_span(1, "x", attributes=FAILED, events=EVENTS, links=LINKS, trace_state="a=1", resource={"service.name": "x" * 200})
    limited = limit_span(span, SpanLimits())
    assert isinstance(limited, LimitedSpan)
    assert encode([limited], "1") == encode([span], "1")


def test_laminar_shape_keeps_the_numbers():
    """Laminar gets the numbers of what was dropped, too. What we add for its page has no limit."""
    limited = shape(limit_span(make_span(1, "x", attributes=FAILED, resource={"service.name": "s"}), SpanLimits(attributes=2)))
    assert message(limited).dropped_attributes_count == 3
    assert {"service.name", "checkpoint.operation", "checkpoint.outcome"} <= limited.attributes.keys()
    assert "mine" not in limited.attributes
