"""Resource and scope of what we send, compared with what OpenTelemetry's SDK would send in the same process."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from collectors import HttpCollector, attributes
from opentelemetry import semconv
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.semconv.schemas import Schemas

from ckpt_observe import __version__
from ckpt_observe.semconv.attributes import ATTRIBUTES
from ckpt_observe.semconv.spans import EXCEPTION_MESSAGE, EXCEPTION_STACKTRACE, EXCEPTION_TYPE, SCHEMA_URL

INSTALLED = entry_points(group="opentelemetry_resource_detector").names
DETECTORS = [name for name in ("process", "os", "host", "service_instance") if name in INSTALLED]
OWN_VALUES = {"telemetry.sdk.name": "ckpt_observe", "telemetry.sdk.version": __version__}
"""The specification reserves `opentelemetry` for OpenTelemetry's SDK."""

PROGRAM = """
import sys
import ckpt_observe.auto
from ckpt_observe import api
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from ckpt_observe.semconv.spans import SCHEMA_URL

api.EXIT_TIMEOUT = 120.0  # it sends everything, however busy the machine is
with ckpt_observe.checkpoint("save"):
    pass
span = TracerProvider().get_tracer("ckpt_observe", ckpt_observe.__version__, SCHEMA_URL).start_span("save")
span.end()
open(sys.argv[1], "wb").write(encode_spans([span]).SerializeToString())
"""


class CollectorOfMetrics(HttpCollector):
    """Also accepts metrics."""

    def handle(self, request, body):
        return 200 if request.path == "/v1/metrics" else super().handle(request, body)


@pytest.fixture
def collector():
    with CollectorOfMetrics() as running:
        yield running


def run(collector, tmp_path, **variables):
    """Run the program. Return the traces that the SDK would send, and the requests that we sent, by path."""
    environ = {
        "CKPT_OBSERVE_DIR": str(tmp_path / "state"),
        "CKPT_OBSERVE_EXPORTERS": "otlp,prometheus",
        "OTEL_EXPORTER_PROMETHEUS_PORT": "none",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": collector.url + "/v1/metrics",
        "PYTHONPATH": str(Path(__file__).parents[1] / "detectors"),
        **variables,
    }
    environ = {**{name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "CKPT_OBSERVE_"))}, **environ}
    subprocess.run([sys.executable, "-c", PROGRAM, tmp_path / "sdk"], env=environ, check=True, timeout=120)
    sdk = ExportTraceServiceRequest.FromString((tmp_path / "sdk").read_bytes())
    return sdk.resource_spans[0], {path: body for path, _, body in collector.requests}


@pytest.mark.parametrize(
    "variables",
    [
        {"OTEL_SERVICE_NAME": "trainer"},
        {"OTEL_RESOURCE_ATTRIBUTES": "service.name=trainer,deployment.environment.name=test,team=m%6C"},
        {"OTEL_SERVICE_NAME": "trainer", "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": ",".join(DETECTORS)},
        {"OTEL_SERVICE_NAME": "trainer", "OTEL_EXPERIMENTAL_RESOURCE_DETECTORS": "test_place,test_failing"},
    ],
    ids=["name", "attributes", "detectors of the SDK", "other detectors"],
)
def test_resource_and_scope(collector, tmp_path, variables):
    """Spans have every resource attribute that those of the SDK have, with the same value, and the same scope. Pid and host come on top."""
    sdk, requests = run(collector, tmp_path, **variables)
    [ours] = ExportTraceServiceRequest.FromString(requests["/v1/traces"]).resource_spans
    expected, sent = attributes(sdk.resource.attributes), attributes(ours.resource.attributes)
    if "service_instance" not in variables.get("OTEL_EXPERIMENTAL_RESOURCE_DETECTORS", ""):
        assert len(sent["service.instance.id"]) == 36
        expected["service.instance.id"] = sent["service.instance.id"]  # random in both
    assert sent.items() >= (expected | OWN_VALUES).items()
    assert sent.keys() - expected.keys() <= {"process.pid", "host.name"}
    assert ours.scope_spans[0].scope == sdk.scope_spans[0].scope
    assert ours.scope_spans[0].schema_url == ours.schema_url == SCHEMA_URL
    assert sdk.scope_spans[0].schema_url in ("", SCHEMA_URL), "older versions of the SDK do not send it"


def test_metrics(collector, tmp_path):
    """Metrics, which are those of all processes, have the attributes of the service and of detectors, but none of the process."""
    detectors = ",".join([*DETECTORS, "test_team"])
    _, requests = run(collector, tmp_path, OTEL_SERVICE_NAME="trainer", OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=detectors)
    [metrics] = ExportMetricsServiceRequest.FromString(requests["/v1/metrics"]).resource_metrics
    sent = attributes(metrics.resource.attributes)
    assert sent.items() >= {**OWN_VALUES, "telemetry.sdk.language": "python", "service.name": "trainer", "team": "ml", "floor": 3}.items()
    assert not [name for name in sent if name.startswith("process.")]
    scope = metrics.scope_metrics[0]
    assert (scope.scope.name, scope.scope.version) == ("ckpt_observe", __version__)
    assert scope.schema_url == metrics.schema_url == SCHEMA_URL


def names_of_opentelemetry():
    for package in ("attributes", "_incubating.attributes"):
        parent = import_module(f"{semconv.__name__}.{package}")
        for module in pkgutil.iter_modules(parent.__path__):
            yield from (value for value in vars(import_module(f"{parent.__name__}.{module.name}")).values() if isinstance(value, str))


@pytest.mark.skipif(SCHEMA_URL not in {each.value for each in Schemas}, reason="the installed conventions are older than ours")
def test_names_follow_the_schema():
    """Every name of ours that is meant to be OpenTelemetry's exists in the semantic conventions."""
    ours = {name for name in ATTRIBUTES if not name.startswith("checkpoint.")}
    ours |= {EXCEPTION_TYPE, EXCEPTION_MESSAGE, EXCEPTION_STACKTRACE, "service.name", "service.instance.id", "process.pid", "host.name"}
    ours |= {*OWN_VALUES, "telemetry.sdk.language"}
    assert ours <= set(names_of_opentelemetry())
