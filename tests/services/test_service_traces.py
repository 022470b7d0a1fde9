"""The spans of one agent are the same in an OTel Collector, Jaeger and the local store."""

from __future__ import annotations

import backend_spans
import pytest
import telemetry
from processes import eventually

from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import outline

pytestmark = pytest.mark.services

EXPECTED = """\
task agent
  checkpoint.save
    checkpoint.serialize
    checkpoint.compress
    checkpoint.digest
    checkpoint.write
    checkpoint.validate
  checkpoint.save
    checkpoint.serialize
    checkpoint.compress
    checkpoint.digest
    checkpoint.write
    checkpoint.validate
  checkpoint.save
    checkpoint.serialize
    checkpoint.compress
    checkpoint.digest
    checkpoint.write
    checkpoint.validate
  checkpoint.save
    checkpoint.serialize
  checkpoint.save
    checkpoint.serialize
    checkpoint.digest
    checkpoint.write
task agent
  checkpoint.restore
    checkpoint.read
    checkpoint.read
    checkpoint.validate
    checkpoint.decompress
    checkpoint.deserialize
  checkpoint.save
    checkpoint.serialize
    checkpoint.digest
    checkpoint.write
    checkpoint.validate"""


def run_life(run_agent, service, server, protocol, **variables):
    for part in ("work", "resume"):
        run_agent(part, "otlp,local", OTEL_SERVICE_NAME=service, **server.variables(protocol), **variables)


def by_start(spans):
    return sorted(spans, key=lambda span: span.start_unix_nano)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_collector_has_the_spans_of_the_local_store(collector, run_agent, state, protocol, compression):
    """An OTel Collector gets exactly the spans of the local store, with equal times and attributes and without duplicates."""
    with collector.running():
        run_life(run_agent, "agent", collector, protocol, OTEL_EXPORTER_OTLP_COMPRESSION=compression)
    stored = backend_spans.from_local_store(state)
    assert outline(by_start(stored)) == EXPECTED
    assert backend_spans.from_collector(collector.file) == stored


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_jaeger_has_the_spans_of_the_local_store(jaeger, run_agent, state, protocol):
    """Jaeger's query API returns the same tree, with statuses, tags, events and the link from the restore to its save."""
    service = f"agent over {protocol}"
    run_life(run_agent, service, jaeger, protocol)
    stored = backend_spans.from_local_store(state)
    assert outline(by_start(stored)) == EXPECTED
    spans = eventually(
        lambda: len(each := backend_spans.from_jaeger(jaeger.traces(service))) >= len(stored) and each, "all spans are in Jaeger"
    )
    assert spans == [backend_spans.as_stored_by_jaeger(span) for span in stored]


def test_collector_forwards_to_jaeger(tmp_path, jaeger, run_agent, state):
    """An OTel Collector forwards the same tree to Jaeger that it writes to its file."""
    collector = telemetry.Collector(tmp_path, forward=jaeger.grpc)
    with collector.running():
        run_life(run_agent, "agent through a collector", collector, "http/protobuf")
    stored = backend_spans.from_local_store(state)
    assert outline(by_start(stored)) == EXPECTED
    assert backend_spans.from_collector(collector.file) == stored
    assert backend_spans.from_jaeger(jaeger.traces("agent through a collector")) == [
        backend_spans.as_stored_by_jaeger(span) for span in stored
    ]


def test_what_jaeger_shows(jaeger, run_agent):
    """Jaeger shows the failure, the kill with its phase, three processes, and the link from the restore to the save."""
    run_life(run_agent, "story", jaeger, "grpc")
    spans = eventually(
        lambda: len(spans := backend_spans.from_jaeger(jaeger.traces("story"))) >= len(EXPECTED.splitlines()) and spans,
        "all spans are in Jaeger",
    )
    operations = [span for span in spans if names.OPERATION in span.attributes]
    assert (
        sorted((span.attributes[names.OUTCOME], span.status) for span in operations)
        == [("error", "error"), ("interrupted", "error")] + [("ok", "ok")] * 5
    )
    [killed] = [span for span in operations if span.attributes[names.OUTCOME] == "interrupted"]
    assert killed.attributes[names.ERROR_PHASE] == "write"
    [failed] = [span for span in operations if span.attributes[names.OUTCOME] == "error"]
    assert failed.attributes[names.ERROR_CLASS] == "serialization"
    assert [event.name for event in failed.events] == ["exception"]
    assert len({span.resource["process.pid"] for span in spans}) == 3
    [restore] = [span for span in operations if span.name == "checkpoint.restore"]
    [source] = [span for span in operations if span.attributes.get(names.STEP) == 3 and span.trace_id != restore.trace_id]
    assert [(link.trace_id, link.span_id) for link in restore.links] == [(source.trace_id, source.span_id)]
    assert {span.attributes.get("user.id") for span in operations if span is not killed} == {"ada"}
