"""Operations of traces that are not sampled: metrics count them, also if the process dies, and they do not become spans."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import urllib.request
from collections import Counter

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from prometheus_client.parser import text_string_to_metric_families

import ckpt_observe
from ckpt_observe.core import Checkpointer
from ckpt_observe.exporters.otlp_metrics import encode_snapshot
from ckpt_observe.exporters.prometheus import ScrapeEndpoint
from ckpt_observe.metricstore.snapshot import gather
from ckpt_observe.prometheus_settings import Prometheus
from ckpt_observe.record import packed_context
from ckpt_observe.record.recorder import recorder
from ckpt_observe.record.trace_context import SPAN_KEY, get_current, parse_traceparent
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from ckpt_observe.semconv.metrics import OPERATIONS

UNSAMPLED_SPAN = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(trace.TraceFlags.DEFAULT)))
SAMPLERS = ("parentbased_always_on", "always_off", "traceidratio", "unsampled parent")
SAVES, FAILURES = 40, 20
FAILED_SPANS = {"task train", "checkpoint.save", "checkpoint.write"}


@pytest.fixture(params=SAMPLERS)
def sampler(request, monkeypatch):
    """Set each sampler in turn, or give the operations of the test an unsampled parent. Yield its name."""
    if request.param == "unsampled parent":
        with trace.use_span(UNSAMPLED_SPAN):
            yield request.param
    else:
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", request.param)
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.1")
        yield request.param


@pytest.fixture
def observe(state, monkeypatch):
    """A function that observes this process until the test ends."""
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", "0")
    with contextlib.ExitStack() as stack:

        def observe(exporters="local,prometheus"):
            watch = ckpt_observe.observe(exporters=exporters, dir=state, pages_dir=state / "pages")
            stack.callback(watch.close, 10)
            return watch

        yield observe


def save(*, fails=False):
    with contextlib.suppress(OSError), ckpt_observe.task("train"), ckpt_observe.checkpoint("save"), ckpt_observe.phase("write"):
        if fails:
            raise OSError(28, "no space")


def scrape(state):
    """Return the number of operations by outcome, as a scraper gets it."""
    endpoint = ScrapeEndpoint(Prometheus(port=0))
    endpoint.publish(lambda: gather(state, "1"))
    try:
        with urllib.request.urlopen("http://{}:{}/metrics".format(*endpoint.address), timeout=30) as answer:
            text = answer.read().decode()
    finally:
        endpoint.close()
    totals: Counter[str] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == OPERATIONS.prometheus_name:
                totals[sample.labels["outcome"]] += int(sample.value)
    return dict(+totals)


def push(state):
    """Return the number of operations by outcome, and the number of exemplars, as an OTLP collector gets them."""
    request = ExportMetricsServiceRequest.FromString(encode_snapshot(*gather(state, "1"), {}, 1))
    points: Counter[str] = Counter()
    exemplars = 0
    for metric in request.resource_metrics[0].scope_metrics[0].metrics:
        data = getattr(metric, metric.WhichOneof("data"))
        exemplars += sum(len(getattr(point, "exemplars", ())) for point in data.data_points)
        if metric.name == OPERATIONS.name:
            for point in data.data_points:
                [outcome] = [each.value.string_value for each in point.attributes if each.key == "outcome"]
                points[outcome] += int(point.as_int or point.as_double)
    return dict(+points), exemplars


def test_metrics_count_every_operation(sampler, observe, state, stored_spans):
    """By scrape and by OTLP, the counters equal the operations made, whatever is sampled. Only sampled operations are spans and exemplars."""
    watch = observe()
    for number in range(SAVES):
        save(fails=number < FAILURES)
    assert watch.flush(30)
    expected = {"ok": SAVES - FAILURES, "error": FAILURES}
    pushed, exemplars = push(state)
    assert (scrape(state), pushed) == (expected, expected)
    saves = [span for span in stored_spans() if span.name == "checkpoint.save"]
    if sampler == "parentbased_always_on":
        assert (len(saves), exemplars > 0) == (SAVES, True)
    elif sampler == "traceidratio":
        assert len(saves) < SAVES / 2
    else:
        assert (saves, exemplars) == ([], 0)


@pytest.mark.parametrize("exports_failures", [False, True])
def test_failures_are_exported_on_request(exports_failures, monkeypatch, observe, state, stored_spans):
    """With the setting, failed operations of unsampled traces are exported with their phases, without the successful ones."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("CKPT_OBSERVE_UNSAMPLED_FAILURES", str(exports_failures).lower())
    watch = observe("local")
    save()
    save(fails=True)
    watch.close(10)
    assert sorted(span.name for span in stored_spans()) == (sorted(FAILED_SPANS) if exports_failures else [])


@pytest.mark.parametrize("provider_sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF)])
def test_provider_with_the_same_sampler_gets_failures(provider_sampler, monkeypatch, observe, state):
    """The program's own provider, whose sampler rejects these traces too, gets the failed operations all the same, marked as sampled."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("CKPT_OBSERVE_UNSAMPLED_FAILURES", "true")
    memory, provider = InMemorySpanExporter(), TracerProvider(sampler=provider_sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    watch = observe("provider")
    save()
    save(fails=True)
    assert watch.flush(30)
    spans = memory.get_finished_spans()
    assert {span.name for span in spans} == FAILED_SPANS
    assert all(span.context.trace_flags.sampled for span in spans)


VICTIM = """
import os, signal, sys
import ckpt_observe
ckpt_observe.observe(exporters="local,prometheus", dir=sys.argv[1])
with ckpt_observe.task("train"), ckpt_observe.checkpoint("save"), ckpt_observe.phase("write"):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("exports_failures", [False, True])
def test_kill_is_counted(exports_failures, monkeypatch, observe, state, stored_spans):
    """A save that `kill -9` cut short in an unsampled trace is counted as interrupted. It is a span only with the setting."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("CKPT_OBSERVE_UNSAMPLED_FAILURES", str(exports_failures).lower())
    subprocess.run([sys.executable, "-c", VICTIM, state], check=False, timeout=60)
    watch = observe()
    assert watch.flush(30)
    assert scrape(state) == {"interrupted": 1}
    watch.close(10)
    assert {span.name for span in stored_spans()} == (FAILED_SPANS if exports_failures else set())


def test_host_program_sees_the_decision(monkeypatch, observe, state):
    """The current span is not sampled, so other spans inside are not either, here or in another process, and nothing loses its place."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    observe("prometheus")
    with ckpt_observe.task("train") as task, ckpt_observe.checkpoint("save") as operation:
        current = trace.get_current_span()
        inner = TracerProvider().get_tracer("host").start_span("inner")
        packed = packed_context.pack(get_current())
    assert current is operation
    assert not current.get_span_context().trace_flags.sampled
    assert not inner.get_span_context().trace_flags.sampled
    assert inner.get_span_context().trace_id == int(task.trace_id, 16)
    assert not parse_traceparent(task.traceparent()).sampled
    assert not packed_context.unpack(packed)[SPAN_KEY].get_span_context().trace_flags.sampled


def test_sampled_load_of_an_unsampled_save(observe, state, stored_spans, tmp_path):
    """The load names its checkpoint, and has no link to a span that no backend has."""
    watch, checkpointer = observe(), Checkpointer(tmp_path / "store")
    with trace.use_span(UNSAMPLED_SPAN):
        checkpointer.save("run-1", {"n": 1}, id="one")
    checkpointer.load("run-1")
    watch.close(10)
    [load] = [span for span in stored_spans() if span.name == "checkpoint.load"]
    assert load.attributes[names.ID] == "one"
    assert (load.links, names.SOURCE_TRACE in load.attributes) == ((), False)


def test_long_begin_line_keeps_the_decision(recording, monkeypatch):
    """An operation with too many attributes for a line is still not sampled."""
    monkeypatch.setattr(recorder, "unsampled", events.NOTHING)
    attributes = {f"name-{number}": "x" * 1000 for number in range(100)}
    with trace.use_span(UNSAMPLED_SPAN), ckpt_observe.checkpoint("save", attributes=attributes):
        pass
    assert [span.unsampled for span in recording.spans()] == [True]


def test_nothing_is_recorded_without_metrics(monkeypatch, observe, state):
    """If no exporter counts unsampled operations, they take no page: nothing is written."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0")
    watch = observe("local")
    save()
    assert not (state / "journals").exists()
    watch.close(10)
    assert not list(state.rglob("*.db"))
