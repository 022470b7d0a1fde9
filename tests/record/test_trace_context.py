"""Whose child an operation is."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import ckpt_observe
from ckpt_observe.record import trace_context
from ckpt_observe.record.recorder import recorder

TRACEPARENT = f"00-{7:032x}-{9:016x}-01"


def the_save(recorded):
    return next(span for span in recorded.spans() if span.name == "checkpoint.save")


def save():
    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
        return trace.get_current_span()


@pytest.fixture
def tracer():
    return TracerProvider().get_tracer("host")


def test_nobody(recorded):
    """Without a parent an operation is the root of a trace of its own."""
    save()
    save()
    first, second = (span for span in recorded.spans() if span.name == "checkpoint.save")
    assert first.parent_span_id == second.parent_span_id == ""
    assert first.trace_id != second.trace_id


def test_sdk_span(recorded, tracer):
    """The current span of the OpenTelemetry SDK is the parent, whoever's provider made it."""
    with tracer.start_as_current_span("host") as host:
        save()
    found = the_save(recorded)
    context = host.get_span_context()
    assert (found.trace_id, found.parent_span_id) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")


def test_unsampled_parent(recorded):
    """A trace that is not recorded gets no operation of ours either, and nothing is written or taken for it."""
    tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("host")
    with tracer.start_as_current_span("host") as host:
        current = save()
        assert current.get_span_context() == host.get_span_context()
    assert recorded.pages == []


def test_unsampled_traceparent(recorded):
    """The same for a parent from the environment."""
    recorder.traceparent = TRACEPARENT[:-1] + "0"
    save()
    assert recorded.pages == []


def test_traceparent(recorded):
    """`TRACEPARENT` is the parent when there is no span in this process."""
    recorder.traceparent = TRACEPARENT
    save()
    found = the_save(recorded)
    assert (found.trace_id, found.parent_span_id) == (f"{7:032x}", f"{9:016x}")


def test_span_goes_before_traceparent(recorded, tracer):
    """What runs in this process is nearer than what started it."""
    recorder.traceparent = TRACEPARENT
    with tracer.start_as_current_span("host") as host:
        save()
    assert the_save(recorded).trace_id == f"{host.get_span_context().trace_id:032x}"


@pytest.mark.parametrize(
    "wrong", ["", "00", TRACEPARENT[:-1], TRACEPARENT + "0", f"00-{0:032x}-{9:016x}-01", f"00-{7:032x}-{0:016x}-01", "00-" + "g" * 32]
)
def test_wrong_traceparent(wrong):
    """A traceparent that is none is no parent."""
    assert trace_context.parse_traceparent(wrong) is None


class FakeLaminar:
    """Stands in for lmnr's `Laminar`: the real one is not installed for the default tests."""

    span = None
    initialized = True

    @classmethod
    def is_initialized(cls):
        return cls.initialized

    @classmethod
    def get_current_span(cls):
        return cls.span


@pytest.fixture
def fake_laminar(monkeypatch):
    monkeypatch.setitem(sys.modules, "lmnr", SimpleNamespace(Laminar=FakeLaminar))
    yield FakeLaminar
    FakeLaminar.span, FakeLaminar.initialized = None, True


def test_laminar_span(recorded, tracer, fake_laminar):
    """Laminar's own context is asked where OpenTelemetry's has no span."""
    fake_laminar.span = tracer.start_span("agent step")
    save()
    assert the_save(recorded).parent_span_id == f"{fake_laminar.span.get_span_context().span_id:016x}"


def test_laminar_not_initialized(recorded, tracer, fake_laminar):
    """Laminar that is imported but not set up is not asked for a span."""
    fake_laminar.span, fake_laminar.initialized = tracer.start_span("agent step"), False
    save()
    assert the_save(recorded).parent_span_id == ""


def test_laminar_that_fails(recorded, monkeypatch):
    """A Laminar of a form we do not know does not reach the host."""
    monkeypatch.setitem(sys.modules, "lmnr", SimpleNamespace(Laminar=object()))
    save()


def test_laminar_is_never_imported(recorded):
    """Looking for a parent imports nothing."""
    save()
    assert "lmnr" not in sys.modules


def test_foreign_span_beneath_a_phase(recorded, tracer):
    """A span of another instrumentation, made within a phase, is a child of that phase."""
    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"), tracer.start_as_current_span("PUT") as put:
        pass
    [write] = [span for span in recorded.spans() if span.name == "checkpoint.write"]
    assert f"{put.parent.span_id:016x}" == write.span_id


def test_phase_under_a_foreign_span(recorded, tracer):
    """A phase within somebody's span within the operation is that span's child."""
    with ckpt_observe.checkpoint("save") as operation, tracer.start_as_current_span("upload") as upload, operation.phase("write"):
        pass
    [write] = [span for span in recorded.spans() if span.name == "checkpoint.write"]
    assert write.parent_span_id == f"{upload.get_span_context().span_id:016x}"


def test_the_host_reaches_the_operation(recorded):
    """`get_current_span().set_attribute(...)` in the host reaches the operation that runs there."""
    with ckpt_observe.checkpoint("save"):
        trace.get_current_span().set_attribute("host.note", "hello")
        trace.get_current_span().add_event("half way", {"done": 1})
    found = the_save(recorded)
    assert found.attributes["host.note"] == "hello"
    assert [(event.name, event.attributes) for event in found.events] == [("half way", {"done": 1})]
