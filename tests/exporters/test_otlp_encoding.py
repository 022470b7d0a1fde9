"""Our OTLP encoder, checked with protobuf."""

from __future__ import annotations

import math
import struct

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Message

from ckpt_observe.exporters.otlp_encoding import encode, encode_requests
from ckpt_observe.semconv.spans import SCHEMA_URL
from ckpt_observe.span import SpanEvent, SpanLink
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree

VALUES = {
    "text": "Zustand ✓ 状態 🧭\u0000\n\"'\\",
    "empty": "",
    "long": "x" * 100_000,
    "zero": 0,
    "one": 1,
    "int": 4096,
    "largest": 2**63 - 1,
    "smallest": -(2**63),
    "minus": -1,
    "double": 0.1,
    "zero double": 0.0,
    "minus zero": -0.0,
    "infinite": math.inf,
    "true": True,
    "false": False,
    "texts": ["a", "", "ä"],
    "ints": [1, -1, 2**63 - 1],
    "doubles": [0.5, 1.5],
    "booleans": [True, False],
    "nothing": [],
    "nested": [["a", "b"], ["c"]],
    "tuple": ("a", "b"),
}


def any_value(value):
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case str():
            return AnyValue(string_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(array_value=ArrayValue(values=[any_value(item) for item in value]))


def key_values(attributes):
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def message(span, status):
    """Return the span as a protobuf message."""
    return Message(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        trace_state=span.trace_state or "",
        parent_span_id=bytes.fromhex(span.parent_span_id),
        name=span.name,
        kind=Message.SPAN_KIND_INTERNAL,
        flags=1,
        start_time_unix_nano=span.start_unix_nano,
        end_time_unix_nano=span.end_unix_nano,
        attributes=key_values(span.attributes),
        events=[
            Message.Event(name=each.name, time_unix_nano=each.time_unix_nano, attributes=key_values(each.attributes))
            for each in span.events
        ],
        links=[
            Message.Link(trace_id=bytes.fromhex(each.trace_id), span_id=bytes.fromhex(each.span_id), attributes=key_values(each.attributes))
            for each in span.links
        ],
        status=status,
    )


def expected(*groups):
    scope = InstrumentationScope(name="ckpt_observe", version="1.2.3")
    return ExportTraceServiceRequest(
        resource_spans=[
            ResourceSpans(
                resource=Resource(attributes=key_values(resource)),
                scope_spans=[ScopeSpans(scope=scope, spans=messages, schema_url=SCHEMA_URL)],
                schema_url=SCHEMA_URL,
            )
            for resource, messages in groups
        ]
    )


def decoded(spans):
    return ExportTraceServiceRequest.FromString(encode(spans, "1.2.3"))


def test_every_field():
    """Ids, times, name, kind, attributes of every type, events, links, status and resource equal those of the protobuf message."""
    span = make_span(
        1,
        "checkpoint.restore ä",
        parent=7,
        status="error",
        attributes=VALUES,
        trace_state="a=1,b=2",
        events=(
            SpanEvent("retry", START_UNIX_NANO, {"n": 1}),
            SpanEvent("exception", START_UNIX_NANO + 1, {"exception.message": "ö broke"}),
        ),
        links=(SpanLink(f"{9:032x}", f"{8:016x}", {"own": 1}), SpanLink(f"{3:032x}", f"{4:016x}")),
        resource={"service.name": "dienst", "process.pid": 12},
    )
    assert decoded([span]) == expected((span.resource, [message(span, Status(code=Status.STATUS_CODE_ERROR, message="ö broke"))]))


@pytest.mark.parametrize(
    ("word", "code"), [("ok", Status.STATUS_CODE_OK), ("error", Status.STATUS_CODE_ERROR), ("unset", Status.STATUS_CODE_UNSET)]
)
def test_status(word, code):
    """Each status has its OpenTelemetry code; an error without an exception has no message."""
    [span] = decoded([make_span(1, "checkpoint.save", status=word)]).resource_spans[0].scope_spans[0].spans
    assert (span.status.code, span.status.message) == (code, "")


def test_spans_are_grouped_by_resource():
    """Spans of two processes in one batch form two groups, each with its resource and our scope."""
    first, second = make_tree(1, resource={"service.name": "a"}), make_tree(2, resource={"service.name": "b"})
    ok = Status(code=Status.STATUS_CODE_OK)
    groups = [(spans[0].resource, [message(span, ok) for span in spans]) for spans in (first, second)]
    assert decoded([*first, *second]) == expected(*groups)


def test_no_spans():
    """The request without spans is empty, which is valid."""
    assert encode([], "1.2.3") == b""


def test_cached_values_keep_their_type():
    """1, True, 1.0 and "1" are encoded with their own types."""
    for value in (1, True, 1.0, "1"):
        [span] = decoded([make_span(1, "x", attributes={"own": value})]).resource_spans[0].scope_spans[0].spans
        assert span.attributes[0].value == any_value(value)


def test_integer_beyond_64_bits_is_text():
    """OTLP has no such integer, so its digits are sent as a string."""
    [span] = decoded([make_span(1, "x", attributes={"own": 2**63})]).resource_spans[0].scope_spans[0].spans
    assert span.attributes[0].value.string_value == str(2**63)


def test_requests_respect_limit_and_order():
    """A batch is split into requests below the limit, with every span once and in order."""
    spans = [span for trace in range(1, 101) for span in make_tree(trace)]
    requests = list(encode_requests(spans, "1.2.3", 4096))
    assert [span for _, group in requests for span in group] == spans
    assert all(ExportTraceServiceRequest.FromString(body) == decoded(group) for body, group in requests)
    assert all(len(body) < 4096 + 200 for body, _ in requests)  # 200: scope and resource
    assert len(requests) > 10


def test_large_span_has_its_own_request():
    """A span above the limit is sent alone, so that the server can refuse it alone."""
    large = make_span(2, "x", attributes={"own": "x" * 5000})
    assert [len(group) for _, group in encode_requests([make_span(1, "x"), large, make_span(3, "x")], "1", 4096)] == [1, 1, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {"attributes": {"own": object()}},
        {"attributes": {"own": "\ud800"}},
        {"trace_id": "ab"},
        {"span_id": "xy" * 8},
        {"start_unix_nano": -1},
    ],
)
def test_value_that_otlp_cannot_represent(fields):
    """An object, a lone surrogate, an invalid id or a time before 1970 raises an exception."""
    span = make_span(1, "x")
    bad = type(span)(**{name: getattr(span, name) for name in span.__struct_fields__} | fields)
    with pytest.raises((TypeError, ValueError, struct.error)):
        encode([bad], "1")


@pytest.mark.parametrize(
    "ids",
    [
        {"trace_id": "ab" * 15},
        {"span_id": "ab" * 9},
        {"parent_span_id": "ab" * 7},
        {"trace_id": "ab" * 15, "span_id": "ab" * 9},  # together as long as they should be
        {"trace_id": "ab" * 15 + "  "},  # white space between hex digits is not an error for Python
        {"span_id": "xy" * 8},
    ],
)
def test_invalid_ids_are_refused(ids):
    """An id that is too short, too long or not hex raises ValueError: backends would store it as another id."""
    with pytest.raises(ValueError, match=r"ids|hex"):
        encode([msgspec.structs.replace(make_span(1, "checkpoint.save", parent=2), **ids)], "1.2.3")


def test_spans_of_one_process_with_different_resource_objects():
    """Two equal resources make one group, although they are not the same object."""
    spans = [span for number in (1, 2) for span in make_tree(number, resource={"service.name": "a"})]
    assert len({id(span.resource) for span in spans}) > 1
    assert len(decoded(spans).resource_spans) == 1
