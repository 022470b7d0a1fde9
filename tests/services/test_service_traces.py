"""One life of an agent, seen by a Collector, by Jaeger and by the local store: the same spans everywhere."""

from __future__ import annotations

import pytest
import received
import telemetry
from processes import eventually

from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import outline

pytestmark = pytest.mark.services

LIFE = """\
task agent
  checkpoint.save
    checkpoint.serialize
    checkpoint.compress
    checkpoint.write
    checkpoint.validate
  checkpoint.save
    checkpoint.serialize
    checkpoint.compress
    checkpoint.write
    checkpoint.validate
  checkpoint.save
    checkpoint.serialize
    checkpoint.compress
    checkpoint.write
    checkpoint.validate
  checkpoint.save
    checkpoint.serialize
  checkpoint.save
    checkpoint.serialize
    checkpoint.write
task agent
  checkpoint.restore
    checkpoint.read
    checkpoint.validate
    checkpoint.decompress
    checkpoint.deserialize
  checkpoint.save
    checkpoint.serialize
    checkpoint.write
    checkpoint.validate"""


def live(run_agent, service, server, protocol, **variables):
    for part in ("work", "resume"):
        run_agent(part, "otlp,local", OTEL_SERVICE_NAME=service, **server.variables(protocol), **variables)


def by_start(spans):
    return sorted(spans, key=lambda span: span.start_unix_nano)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_collector_has_the_spans_of_the_local_store(collector, run_agent, state, protocol, compression):
    """L5: what comes out of a Collector is what the local store has, to the nanosecond and the last attribute, and no span twice."""
    with collector.running():
        live(run_agent, "agent", collector, protocol, OTEL_EXPORTER_OTLP_COMPRESSION=compression)
    kept = received.of_local_store(state)
    assert outline(by_start(kept)) == LIFE
    assert received.of_collector(collector.file) == kept


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_jaeger_has_the_spans_of_the_local_store(jaeger, run_agent, state, protocol):
    """L6: Jaeger's query API gives the same tree back, with statuses, tags, events and the link from the restore to its save."""
    service = f"agent over {protocol}"
    live(run_agent, service, jaeger, protocol)
    kept = received.of_local_store(state)
    assert outline(by_start(kept)) == LIFE
    found = eventually(lambda: len(spans := received.of_jaeger(jaeger.traces(service))) >= len(kept) and spans, "all spans are in Jaeger")
    assert found == [received.as_jaeger_keeps(span) for span in kept]


def test_collector_hands_on_to_jaeger(tmp_path, jaeger, run_agent, state):
    """L6: through a Collector into Jaeger, the tree is the same as on the way into the Collector's file."""
    collector = telemetry.Collector(tmp_path, forward=jaeger.grpc)
    with collector.running():
        live(run_agent, "agent through a collector", collector, "http/protobuf")
    kept = received.of_local_store(state)
    assert outline(by_start(kept)) == LIFE
    assert received.of_collector(collector.file) == kept
    assert received.of_jaeger(jaeger.traces("agent through a collector")) == [received.as_jaeger_keeps(span) for span in kept]


def test_story_of_the_agent_in_jaeger(jaeger, run_agent):
    """L6: who looks at Jaeger sees the failure, the kill and its phase, three processes, and from the restore a link to the save."""
    live(run_agent, "story", jaeger, "grpc")
    spans = eventually(
        lambda: len(spans := received.of_jaeger(jaeger.traces("story"))) >= len(LIFE.splitlines()) and spans, "all spans are in Jaeger"
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
