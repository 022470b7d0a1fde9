"""The parent's W3C `tracestate` is kept: on our spans, and in what the current span propagates."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import ckpt_observe
from ckpt_observe.record import trace_context, trace_state
from ckpt_observe.record.packed_context import pack, unpack
from ckpt_observe.record.recorder import recorder
from ckpt_observe.record.trace_context import get_current, with_parent
from ckpt_observe.semconv import events

STATE = "rojo=00f067aa0ba902b7,tenant@congo=t61rcWkgMzE:x y"
TRACEPARENT = f"00-{7:032x}-{9:016x}-01"
_propagator = TraceContextTextMapPropagator()


@pytest.fixture
def attach():
    """Makes a context current for the duration of a test."""
    tokens = []
    yield lambda context: tokens.append(otel_context.attach(context))
    for token in reversed(tokens):
        otel_context.detach(token)


def propagated():
    carrier = {}
    _propagator.inject(carrier)
    return carrier.get("tracestate")


def save():
    """Save with a phase and an inner operation; return the `tracestate` that was propagated from each."""
    with ckpt_observe.checkpoint("save") as operation:
        outside = propagated()
        with operation.phase("write"), ckpt_observe.checkpoint("prune"):
            return outside, propagated()


def states(recording):
    spans = recording.spans()
    assert {span.name for span in spans} == {"checkpoint.save", "checkpoint.write", "checkpoint.prune"}
    return {span.trace_state for span in spans}


def remote_parent(state=STATE):
    return _propagator.extract({"traceparent": TRACEPARENT, **({"tracestate": state} if state else {})})


def test_remote_parent(recording, attach):
    """Operations, phases and inner operations of a remote parent keep its tracestate, and propagate it."""
    attach(remote_parent())
    assert save() == (STATE, STATE)
    assert states(recording) == {STATE}


@pytest.mark.parametrize("unsampled", [None, events.NOTHING])
def test_unsampled_parent(recording, attach, monkeypatch, unsampled):
    """What is current inside a trace that is not sampled propagates its tracestate, whether it is counted or not recorded at all."""
    monkeypatch.setattr(recorder, "unsampled", unsampled)
    attach(_propagator.extract({"traceparent": TRACEPARENT[:-1] + "0", "tracestate": STATE}))
    assert save() == (STATE, STATE)


def test_sdk_span(recording, attach):
    """A span of the SDK hands its tracestate on to us, and our operation to spans of the SDK inside it."""
    attach(remote_parent())
    tracer = TracerProvider().get_tracer("host")
    with tracer.start_as_current_span("host"), ckpt_observe.checkpoint("save"), tracer.start_as_current_span("inner") as inner:
        assert inner.get_span_context().trace_state.to_header() == STATE
    assert {span.trace_state for span in recording.spans()} == {STATE}


@pytest.mark.parametrize("laminar_context", ["", json.dumps({"trace_id": str(UUID(int=7)), "span_id": str(UUID(int=9))})])
def test_process_parent(recording, monkeypatch, laminar_context):
    """TRACESTATE belongs to TRACEPARENT, also if LMNR_SPAN_CONTEXT names the same span."""
    monkeypatch.setattr(recorder, "process_parent", trace_context.find_process_parent(TRACEPARENT, laminar_context, STATE))
    assert save() == (STATE, STATE)
    assert states(recording) == {STATE}


def test_other_process_parent():
    """TRACESTATE says nothing about a span that only LMNR_SPAN_CONTEXT names."""
    laminar_context = json.dumps({"trace_id": str(UUID(int=7)), "span_id": str(UUID(int=9))})
    assert trace_context.find_process_parent("", laminar_context, STATE).trace_state == ""


def test_no_trace_state(recording, attach):
    """Without a tracestate, the journal, the spans and their JSON do not mention it, and nothing is propagated."""
    attach(remote_parent(""))
    assert save() == (None, None)
    assert not any(states(recording))
    assert all(b"trace_state" not in line for page in recording.pages for line in page.lines)


def test_task(recording, attach):
    """Operations of a task keep the tracestate of its parent; a span of another trace inside the task has none."""
    tracer = TracerProvider().get_tracer("host")
    attach(remote_parent())
    with ckpt_observe.task("agent"):
        with ckpt_observe.checkpoint("save"):
            pass
        with tracer.start_as_current_span("other", context=otel_context.Context()), ckpt_observe.checkpoint("load"):
            assert propagated() is None
    by_name = {span.name: span.trace_state for span in recording.spans()}
    assert by_name["task agent"] == by_name["checkpoint.save"] == STATE
    assert not by_name["checkpoint.load"]


@pytest.mark.parametrize("from_operation", [True, False])
def test_child_process(recording, attach, from_operation):
    """The tracestate travels to child processes, from an operation and from a span of the host program."""
    attach(remote_parent())
    if from_operation:
        with ckpt_observe.checkpoint("save"):
            packed = pack(get_current())
    else:
        packed = pack(get_current())
    attach(otel_context.Context())
    carried = unpack(json.loads(json.dumps(packed)))
    attach(with_parent(get_current(), trace.get_current_span(carried), None))
    with ckpt_observe.checkpoint("load"):
        assert propagated() == STATE
    assert next(span for span in recording.spans() if span.name == "checkpoint.load").trace_state == STATE
    assert trace.get_current_span(carried).get_span_context().trace_state.to_header() == STATE


@pytest.mark.parametrize("invalid", ["", "no pair", "a=1,a=2", "ü=1", "a=" + "x" * 300, ",".join(f"k{n}=v" for n in range(40))])
def test_invalid_variable(invalid):
    """An invalid TRACESTATE is ignored; TRACEPARENT still counts."""
    parent = trace_context.find_process_parent(TRACEPARENT, "", invalid)
    assert (parent.span, parent.trace_state) == (f"{9:016x}", "")


def test_long_trace_state():
    """More than 512 characters are cut to whole members: first long ones go, then those at the end."""
    members = ["a=" + "1" * 200, *(f"k{number:02}=" + "2" * 36 for number in range(20)), "z=3"]
    shortened = trace_state.parse_header(",".join(members))
    assert shortened.split(",") == members[1:13]
    assert len(shortened) <= trace_state.MAX_LENGTH


def test_packed_form():
    """The packed form is read back as it was, contains no `=`, and is dropped if it was cut."""
    packed = events.pack_trace_state(STATE)
    assert "=" not in packed
    assert events.unpack_trace_state(packed) == STATE
    assert events.unpack_trace_state(packed[:20] + "…") == ""
