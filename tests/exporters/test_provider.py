"""The provider exporter: our spans through the TracerProvider of the host program."""

from __future__ import annotations

import os
import threading

import pytest
from msgspec import structs
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanKind

from ckpt_observe import __version__
from ckpt_observe.errors import ExporterRetryError
from ckpt_observe.exporters import provider as module
from ckpt_observe.exporters.provider import ProviderExporter
from ckpt_observe.semconv.spans import SCHEMA_URL
from ckpt_observe.span import Span, SpanEvent, SpanLink
from ckpt_observe.testing.exporters import ExporterContract
from ckpt_observe.testing.spans import make_span, make_tree


class World:
    """A provider of a program with an in-memory exporter, and our exporter that uses it."""

    def __init__(self, **settings):
        self.memory = InMemorySpanExporter()
        self.provider = TracerProvider(resource=Resource({"service.name": "theirs"}), shutdown_on_exit=False, **settings)
        self.provider.add_span_processor(SimpleSpanProcessor(self.memory))
        self.exporter = ProviderExporter(lambda: self.provider, lambda _: False)

    @property
    def spans(self):
        return self.memory.get_finished_spans()


@pytest.fixture
def world():
    return World()


def plain(value):
    return list(value) if isinstance(value, tuple) else value


def as_ours(span, resource):
    """Convert a span of the SDK to ours, with its original resource, which the provider replaces (tested below)."""
    return Span(
        trace_id=f"{span.context.trace_id:032x}",
        span_id=f"{span.context.span_id:016x}",
        parent_span_id=f"{span.parent.span_id:016x}" if span.parent else "",
        name=span.name,
        start_unix_nano=span.start_time,
        end_unix_nano=span.end_time,
        status=span.status.status_code.name.lower(),
        attributes={name: plain(value) for name, value in span.attributes.items()},
        events=tuple(SpanEvent(event.name, event.timestamp, dict(event.attributes)) for event in span.events),
        links=tuple(
            SpanLink(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}", dict(link.attributes)) for link in span.links
        ),
        resource=resource,
    )


class TestProviderExporter(ExporterContract):
    test_repeat_leaves_one_copy = None  # the provider of the program keeps every copy

    @pytest.fixture
    def exporter(self, world):
        world.exporter.world, world.exporter.resources = world, {}
        send = world.exporter.send

        def send_and_record(spans):
            world.exporter.resources.update({int(span.span_id, 16): span.resource for span in spans})
            send(spans)

        world.exporter.send = send_and_record
        return world.exporter

    def received(self, exporter):
        return [as_ours(span, exporter.resources[span.context.span_id]) for span in exporter.world.spans]

    def break_backend(self, exporter):
        exporter._find = lambda: None


def test_span_has_resource_and_scope(world):
    """A span has the provider's resource, our scope and version, and the sampled flag; an error has the message of the exception."""
    failed = SpanEvent("exception", 5, {"exception.message": "no space"})
    world.exporter.send([make_span(2, "checkpoint.save", parent=1, status="error", events=(failed,))])
    [span] = world.spans
    assert span.resource == world.provider.resource
    assert span.instrumentation_scope == InstrumentationScope("ckpt_observe", __version__, SCHEMA_URL)
    assert (span.context.trace_flags.sampled, span.kind, span.status.description) == (True, SpanKind.INTERNAL, "no space")


@pytest.mark.parametrize(
    ("resource", "setting", "kinds"),
    [
        ({}, False, [None, None]),
        ({"openinference.project.name": "demo"}, False, ["TOOL", "CHAIN"]),
        ({}, True, ["TOOL", "CHAIN"]),
    ],
)
def test_openinference(resource, setting, kinds):
    """Spans get their kind if the provider names a project, as that of Phoenix's `register()` does, or if the setting asks for it."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource(resource), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    ProviderExporter(lambda: provider, lambda _: False, uses_openinference=setting).send(make_tree(phases=()))
    assert [span.attributes.get("openinference.span.kind") for span in memory.get_finished_spans()] == kinds


def test_trace_state(world):
    """A span and its parent keep the `tracestate` of their trace, as spans of the SDK do."""
    world.exporter.send([make_span(2, "checkpoint.save", parent=1, trace_state="a=1,b=2"), make_span(3, "checkpoint.load")])
    with_state, without = world.spans
    assert with_state.context.trace_state.to_header() == with_state.parent.trace_state.to_header() == "a=1,b=2"
    assert without.context.trace_state == {}


def test_limits_of_the_provider():
    """The limits that the provider has for the program's spans hold for ours, and exporters see the numbers of what was dropped."""
    world = World(span_limits=SpanLimits(max_span_attributes=2, max_span_attribute_length=3, max_events=1, max_links=0))
    attributes = {"mine": "x", "list": ["long"], "checkpoint.outcome": "error"}
    events = (SpanEvent("first", 1), SpanEvent("second", 2, {"a": "long"}))
    world.exporter.send([make_span(1, "a", attributes=attributes, events=events, links=(SpanLink("1" * 32, "2" * 16),))])
    [span] = world.spans
    assert dict(span.attributes) == {"mine": "x", "checkpoint.outcome": "err"}
    assert [event.name for event in span.events] == ["second"]
    assert (span.dropped_attributes, span.dropped_events, span.dropped_links) == (1, 1, 1)


def test_provider_without_limits():
    """A provider whose limits are turned off gets everything."""
    none = SpanLimits.UNSET
    world = World(span_limits=SpanLimits(max_span_attributes=none, max_events=none, max_links=none, max_event_attributes=none))
    attributes = {str(number): number for number in range(300)}
    world.exporter.send([make_span(1, "a", attributes=attributes, events=(SpanEvent("x", 1, attributes),))])
    assert (len(world.spans[0].attributes), len(world.spans[0].events[0].attributes)) == (300, 300)


def test_every_processor_gets_our_spans_once(world):
    """All processors get each of our spans once; spans of the program do not pass through us."""
    second = InMemorySpanExporter()
    world.provider.add_span_processor(SimpleSpanProcessor(second))
    with world.provider.get_tracer("theirs").start_as_current_span("their own"):
        world.exporter.send(make_tree())
    assert sorted(span.name for span in second.get_finished_spans()) == sorted([*(span.name for span in make_tree()), "their own"])


def test_spans_wait_for_a_provider():
    """A provider may be set after the first checkpoint; until then the journal keeps the spans."""
    providers = []
    exporter = ProviderExporter(lambda: providers[0] if providers else None, lambda _: False)
    with pytest.raises(ExporterRetryError, match="no TracerProvider"):
        exporter.send(make_tree())
    world = World()
    providers.append(world.provider)
    exporter.send(make_tree())
    assert len(world.spans) == len(make_tree())


def test_dead_process_keeps_its_identity(world):
    """Spans of a dead process have its id and host, not ours."""
    dead = {"service.name": "x", "service.instance.id": "theirs", "process.pid": os.getpid() + 1, "host.name": "h"}
    world.exporter.send([make_span(1, "checkpoint.save", resource=dead)])
    assert dict(world.spans[0].resource.attributes) == {
        "service.name": "theirs",
        "service.instance.id": "theirs",
        "process.pid": os.getpid() + 1,
        "host.name": "h",
    }


@pytest.mark.parametrize("sampler", [TraceIdRatioBased(0.5), ParentBased(TraceIdRatioBased(0.5))])
def test_sampler_decides_about_our_traces(sampler):
    """The sampler of the program keeps or drops each of our traces as a whole."""
    world = World(sampler=sampler)
    trees = [[structs.replace(span, trace_id=f"{trace << 62:032x}", ancestors=()) for span in make_tree()] for trace in range(1, 9)]
    for tree in trees:
        world.exporter.send(tree)
    sampled = {tree[0].trace_id for tree in trees if sampler.should_sample(None, int(tree[0].trace_id, 16), "x").decision.is_sampled()}
    assert 0 < len(sampled) < len(trees)
    assert {f"{span.context.trace_id:032x}" for span in world.spans} == sampled
    assert len(world.spans) == len(sampled) * len(make_tree())


def test_trace_that_began_elsewhere_is_not_sampled_again():
    """Its root was sampled, otherwise it would not have been recorded."""
    world = World(sampler=ALWAYS_OFF)
    world.exporter.send([make_span(2, "checkpoint.save", parent=1)])
    assert len(world.spans) == 1


def test_backlog_does_not_overflow_the_queue(world, monkeypatch):
    """A batch processor drops spans if its queue is full, so a backlog is flushed in between."""
    monkeypatch.setattr(module, "SPANS_PER_FLUSH", 8)
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=8, max_export_batch_size=8, schedule_delay_millis=60_000))
    ProviderExporter(lambda: provider, lambda _: False).send([make_span(number, "checkpoint.save") for number in range(1, 101)])
    provider.shutdown()
    assert len(exporter.get_finished_spans()) == 100


class SlowExporter(InMemorySpanExporter):
    """Takes longer for a batch than we take to hand one over."""

    def export(self, spans):
        threading.Event().wait(0.01)
        return super().export(spans)


@pytest.mark.parametrize("is_laminar", [True, False])
def test_many_small_batches_do_not_overflow_the_queue(is_laminar):
    """While the queue is more than half full, we wait. No flush is needed for that, which would block the program's own spans."""
    exporter = SlowExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    processor = BatchSpanProcessor(exporter, max_queue_size=64, max_export_batch_size=16, schedule_delay_millis=60_000)
    provider.add_span_processor(processor)
    processor.instance = processor  # as in Laminar's processor
    ours = ProviderExporter(lambda: provider, lambda _: is_laminar)
    for first in range(1, 1001, 20):
        ours.send([make_span(number, "checkpoint.save") for number in range(first, first + 20)])
    provider.shutdown()
    assert len(exporter.get_finished_spans()) == 1000


def test_failing_processor_does_not_stop_delivery(world, caplog):
    """If a processor of the program raises, a warning is logged once and all spans are handed over."""

    class Broken(SpanProcessor):
        def on_end(self, span):
            raise ValueError("theirs")

    world.provider.add_span_processor(Broken())
    world.exporter.send(make_tree())
    assert len(world.spans) == len(make_tree())
    assert sum("processor of your TracerProvider raised" in record.getMessage() for record in caplog.records) == 1
