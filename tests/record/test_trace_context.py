"""Ids of operations, and which span is the parent of an operation."""

from __future__ import annotations

import json
import os
import random
import sys
from types import SimpleNamespace
from uuid import UUID

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import ckpt_observe
from ckpt_observe.record import trace_context
from ckpt_observe.record.recorder import recorder

TRACEPARENT = f"00-{7:032x}-{9:016x}-01"


def save_span(recording):
    return next(span for span in recording.spans() if span.name == "checkpoint.save")


def save():
    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
        return trace.get_current_span()


@pytest.fixture
def tracer():
    return TracerProvider().get_tracer("host")


def test_no_parent(recording):
    """Without a parent, each operation is the root of a new trace."""
    save()
    save()
    first, second = (span for span in recording.spans() if span.name == "checkpoint.save")
    assert first.parent_span_id == second.parent_span_id == ""
    assert first.trace_id != second.trace_id


def test_sdk_span(recording, tracer):
    """The current span of the OpenTelemetry SDK is the parent, whichever provider it comes from."""
    with tracer.start_as_current_span("host") as host:
        save()
    span = save_span(recording)
    context = host.get_span_context()
    assert (span.trace_id, span.parent_span_id) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")


def test_unsampled_parent(recording):
    """Nothing is recorded inside a trace that is not sampled, and no page is taken."""
    tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("host")
    with tracer.start_as_current_span("host") as host:
        current = save()
        assert current.get_span_context() == host.get_span_context()
    assert recording.pages == []


def test_unsampled_traceparent(recording):
    """Nothing is recorded if `TRACEPARENT` is not sampled."""
    recorder.process_parent = trace_context.parse_traceparent(TRACEPARENT[:-1] + "0")
    save()
    assert recording.pages == []


def test_traceparent(recording):
    """`TRACEPARENT` is the parent if this process has no current span."""
    recorder.process_parent = trace_context.parse_traceparent(TRACEPARENT)
    save()
    span = save_span(recording)
    assert (span.trace_id, span.parent_span_id) == (f"{7:032x}", f"{9:016x}")


def test_span_has_precedence_over_traceparent(recording, tracer):
    """The current span of this process is preferred to the one that started the process."""
    recorder.process_parent = trace_context.parse_traceparent(TRACEPARENT)
    with tracer.start_as_current_span("host") as host:
        save()
    assert save_span(recording).trace_id == f"{host.get_span_context().trace_id:032x}"


@pytest.mark.parametrize(
    "invalid", ["", "00", TRACEPARENT[:-1], TRACEPARENT + "0", f"00-{0:032x}-{9:016x}-01", f"00-{7:032x}-{0:016x}-01", "00-" + "g" * 32]
)
def test_invalid_traceparent(invalid):
    """An invalid `traceparent` is ignored."""
    assert trace_context.parse_traceparent(invalid) is None


LAMINAR_CONTEXT = {
    "trace_id": str(UUID(int=7)),
    "span_id": str(UUID(int=9)),
    "is_remote": True,
    "span_path": ["agent", "step"],
    "span_ids_path": [str(UUID(int=8)), str(UUID(int=9))],
    "user_id": "u1",
    "session_id": "s1",
    "trace_type": None,
    "metadata": {"a": 1},
}
"""As lmnr 0.8.2 serializes it."""


def test_laminar_context(recording):
    """`LMNR_SPAN_CONTEXT` names the parent, the path to it, session and user."""
    recorder.process_parent = trace_context.find_process_parent("", json.dumps(LAMINAR_CONTEXT))
    save()
    span = save_span(recording)
    assert (span.trace_id, span.parent_span_id) == (f"{7:032x}", f"{9:016x}")
    assert span.ancestors == ((f"{8:016x}", "agent"), (f"{9:016x}", "step"))
    assert (span.attributes["session.id"], span.attributes["user.id"]) == ("s1", "u1")


@pytest.mark.parametrize(
    ("traceparent", "has_path"), [(TRACEPARENT, True), (f"00-{7:032x}-{5:016x}-01", False), (f"00-{6:032x}-{9:016x}-01", False)]
)
def test_traceparent_and_laminar_context(traceparent, has_path):
    """`TRACEPARENT` has precedence. If both variables name the same span, the one of Laminar adds what it knows."""
    parent = trace_context.find_process_parent(traceparent, json.dumps(LAMINAR_CONTEXT))
    assert (parent.trace, parent.span) == tuple(traceparent.split("-")[1:3])
    assert (parent.path is not None) is has_path


@pytest.mark.parametrize(
    "change", [{"trace_id": "x"}, {"trace_id": str(UUID(int=0))}, {"span_id": str(UUID(int=1 << 64))}, {"span_path": 1}, {"user_id": {}}]
)
def test_invalid_laminar_context(change):
    """An invalid context of Laminar is ignored."""
    for text in ("", "[]", "[" * 100_000, json.dumps({**LAMINAR_CONTEXT, **change})):
        assert trace_context.find_process_parent("", text) is None


class FakeLaminar:
    """Stands in for `lmnr.Laminar`, which is not installed for the default tests."""

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


def test_laminar_span(recording, tracer, fake_laminar):
    """Laminar's current span is the parent if OpenTelemetry has no current span."""
    fake_laminar.span = tracer.start_span("agent step")
    save()
    assert save_span(recording).parent_span_id == f"{fake_laminar.span.get_span_context().span_id:016x}"


def test_laminar_not_initialized(recording, tracer, fake_laminar):
    """If Laminar is imported but not initialized, its span is not used."""
    fake_laminar.span, fake_laminar.initialized = tracer.start_span("agent step"), False
    save()
    assert save_span(recording).parent_span_id == ""


def test_unknown_version_of_laminar(recording, monkeypatch):
    """A `Laminar` without the expected methods does not raise into the host program."""
    monkeypatch.setitem(sys.modules, "lmnr", SimpleNamespace(Laminar=object()))
    save()


def test_laminar_is_never_imported(recording):
    """The search for a parent does not import lmnr."""
    save()
    assert "lmnr" not in sys.modules


def test_span_of_another_library_in_a_phase(recording, tracer):
    """A span that another instrumentation starts within a phase is a child of that phase."""
    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"), tracer.start_as_current_span("PUT") as put:
        pass
    [write] = [span for span in recording.spans() if span.name == "checkpoint.write"]
    assert f"{put.parent.span_id:016x}" == write.span_id


def test_phase_in_a_span_of_another_library(recording, tracer):
    """A phase within another library's span within the operation is a child of that span."""
    with ckpt_observe.checkpoint("save") as operation, tracer.start_as_current_span("upload") as upload, operation.phase("write"):
        pass
    [write] = [span for span in recording.spans() if span.name == "checkpoint.write"]
    assert write.parent_span_id == f"{upload.get_span_context().span_id:016x}"


def test_host_program_sets_attributes_and_events(recording):
    """`get_current_span().set_attribute(...)` in the host program sets an attribute of the running operation."""
    with ckpt_observe.checkpoint("save"):
        trace.get_current_span().set_attribute("host.note", "hello")
        trace.get_current_span().add_event("half way", {"done": 1})
    span = save_span(recording)
    assert span.attributes["host.note"] == "hello"
    assert [(event.name, event.attributes) for event in span.events] == [("half way", {"done": 1})]


def test_seeding_random_does_not_repeat_ids():
    """A program that seeds `random` again and again still gets new ids."""
    ids = []
    for _ in range(3):
        random.seed(42)
        ids += [trace_context.new_span_id() for _ in range(1000)] + [trace_context.new_trace_id() for _ in range(10)]
    assert len(set(ids)) == len(ids)


def test_recording_does_not_use_random(recording):
    """Recording does not change the state of `random`."""
    random.seed(42)
    before = random.getstate()
    for _ in range(600):
        with ckpt_observe.checkpoint("save") as operation, operation.phase("write"):
            pass
    assert random.getstate() == before


def test_length_of_ids():
    """Ids have 16 and 32 hex digits."""
    assert len(trace_context.new_span_id()) == 16
    assert len(trace_context.new_trace_id()) == 32
    assert int(trace_context.new_trace_id(), 16)


def test_forked_children_do_not_repeat_ids():
    """Forked children do not use the ids that the parent has in stock."""
    trace_context.new_span_id()  # fills the stock
    ids = []
    for _ in range(2):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, "".join(trace_context.new_span_id() for _ in range(100)).encode())
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as pipe:
            text = pipe.read().decode()
        os.waitpid(child, 0)
        ids += [text[at : at + 16] for at in range(0, 1600, 16)]
    ids += [trace_context.new_span_id() for _ in range(1000)]
    assert len(set(ids)) == len(ids) == 1200
