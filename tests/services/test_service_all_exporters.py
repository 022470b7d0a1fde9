"""One agent with all exporters at once: the local store, Jaeger, a provider of the program, and Laminar's endpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import agent
import backend_spans
import processes
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "exporters"))

import laminar_server

from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import outline

pytestmark = pytest.mark.services

SERVICE = "agent with all exporters"
IDENTITY = ("trace_id", "span_id", "parent_span_id", "name")


@pytest.fixture
def program_provider(tmp_path, collector):
    """Variables that have the effect of `opentelemetry-instrument`, with a configured provider that exports to the OTel Collector."""
    instrumentation = pytest.importorskip("opentelemetry.instrumentation.auto_instrumentation")
    exporter = {"otlp_http": {"endpoint": f"http://127.0.0.1:{collector.http}/v1/traces"}}
    declared = {"file_format": "1.0", "tracer_provider": {"processors": [{"simple": {"exporter": exporter}}]}}
    (tmp_path / "otel.yaml").write_text(json.dumps(declared))
    return {"OTEL_CONFIG_FILE": str(tmp_path / "otel.yaml"), "PYTHONPATH": str(Path(instrumentation.__file__).parent)}


def by_start(spans):
    return sorted(spans, key=lambda span: span.start_unix_nano)


def test_same_spans_in_all_backends(program_provider, collector, jaeger, run_agent, state):
    """With saves, a failure, a kill and a restore in three processes, each backend has every span once, with equal ids, parents, outcomes and times."""
    with collector.running(), laminar_server.LaminarServer() as laminar:
        keys = {"LMNR_PROJECT_API_KEY": laminar.key, "LMNR_BASE_URL": laminar.url, "OTEL_SERVICE_NAME": SERVICE}
        for part in ("work", "resume"):
            run_agent(part, "provider,otlp,laminar,local", **jaeger.variables("grpc"), **keys, **program_provider)
        stored = backend_spans.from_local_store(state)
        in_jaeger = processes.eventually(
            lambda: len(spans := backend_spans.from_jaeger(jaeger.traces(SERVICE))) >= len(stored) and spans, "all spans are in Jaeger"
        )
    in_provider, at_laminar = backend_spans.from_collector(collector.file), laminar.rows
    assert "interrupted" in {span.attributes.get(names.OUTCOME) for span in stored}, agent.__doc__
    tree = outline(by_start(stored))
    for spans in (in_provider, at_laminar):
        assert outline(by_start(spans)) == tree
        assert times(spans) == times(stored)
    for spans in (in_jaeger, in_provider, at_laminar):
        assert identities(spans) == identities(stored)
    assert laminar.complaints() == []


def identities(spans):
    return sorted((*(getattr(span, name) for name in IDENTITY), span.attributes[names.OUTCOME]) for span in spans)


def times(spans):
    return sorted((span.span_id, span.start_unix_nano, span.end_unix_nano) for span in spans)
