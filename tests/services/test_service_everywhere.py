"""One life of an agent, seen everywhere at once: in the local store, Jaeger, the user's own provider and at Laminar's endpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import agent
import processes
import pytest
import received

sys.path.insert(0, str(Path(__file__).parents[1] / "exporters"))

import laminar_server

from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import outline

pytestmark = pytest.mark.services

SERVICE = "agent everywhere"
IDENTITY = ("trace_id", "span_id", "parent_span_id", "name")


@pytest.fixture
def provider_of_the_user(tmp_path, collector):
    """Variables that do with every Python what `opentelemetry-instrument` does, with a file whose provider exports to the Collector."""
    instrumentation = pytest.importorskip("opentelemetry.instrumentation.auto_instrumentation")
    exporter = {"otlp_http": {"endpoint": f"http://127.0.0.1:{collector.http}/v1/traces"}}
    declared = {"file_format": "1.0", "tracer_provider": {"processors": [{"simple": {"exporter": exporter}}]}}
    (tmp_path / "otel.yaml").write_text(json.dumps(declared))
    return {"OTEL_CONFIG_FILE": str(tmp_path / "otel.yaml"), "PYTHONPATH": str(Path(instrumentation.__file__).parent)}


def by_start(spans):
    return sorted(spans, key=lambda span: span.start_unix_nano)


def test_the_same_tree_everywhere(provider_of_the_user, collector, jaeger, run_agent, state):
    """Saves, a failure, a kill, a restore, three processes: each place has every span once, with the same ids, parents, outcomes and times."""
    with collector.running(), laminar_server.LaminarServer() as laminar:
        keys = {"LMNR_PROJECT_API_KEY": laminar.key, "LMNR_BASE_URL": laminar.url, "OTEL_SERVICE_NAME": SERVICE}
        for part in ("work", "resume"):
            run_agent(part, "provider,otlp,laminar,local", **jaeger.variables("grpc"), **keys, **provider_of_the_user)
        kept = received.of_local_store(state)
        in_jaeger = processes.eventually(
            lambda: len(found := received.of_jaeger(jaeger.traces(SERVICE))) >= len(kept) and found, "all spans are in Jaeger"
        )
    in_provider, at_laminar = received.of_collector(collector.file), laminar.rows
    assert "interrupted" in {span.attributes.get(names.OUTCOME) for span in kept}, agent.__doc__
    tree = outline(by_start(kept))
    for place in (in_provider, at_laminar):
        assert outline(by_start(place)) == tree
        assert times(place) == times(kept)
    for place in (in_jaeger, in_provider, at_laminar):
        assert facts(place) == facts(kept)
    assert laminar.complaints() == []


def facts(spans):
    return sorted((*(getattr(span, name) for name in IDENTITY), span.attributes[names.OUTCOME]) for span in spans)


def times(spans):
    return sorted((span.span_id, span.start_unix_nano, span.end_unix_nano) for span in spans)
