"""Metrics pushed as OTLP."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_CUMULATIVE
from prometheus_client.parser import text_string_to_metric_families

from ckpt_observe import config, endpoints
from ckpt_observe.errors import ConfigError, ExporterError
from ckpt_observe.exporters.otlp_metrics import OtlpMetricsPublisher, encode_snapshot
from ckpt_observe.exporters.prometheus_text import render
from ckpt_observe.metricstore.metric_store import MetricStore
from ckpt_observe.metricstore.snapshot import gather as gather_all
from ckpt_observe.semconv.metrics import METRICS
from ckpt_observe.testing.spans import make_tree

TREE = make_tree(7, operations=("save", "restore"), outcome="error")


@pytest.fixture
def gather(tmp_path):
    store = MetricStore(tmp_path / "metrics.db")
    store.add_spans(TREE)
    store.close()
    return lambda: gather_all(tmp_path, "1")


@pytest.fixture
def collector():
    """Answers with `status` and `answer`, and records requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(collector.status)
            self.end_headers()
            self.wfile.write(collector.answer)

        def log_message(self, *args): ...

    collector = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.requests, collector.status, collector.answer = [], 200, b""
    collector.url = f"http://127.0.0.1:{collector.server_port}"
    threading.Thread(target=collector.serve_forever, args=(0.01,), daemon=True).start()
    yield collector
    collector.shutdown()
    collector.server_close()


def request(gather, resource, now):
    return ExportMetricsServiceRequest.FromString(encode_snapshot(*gather(), resource, now))


def by_otlp(gather):
    """Return values by Prometheus name and labels, as a Prometheus with an OTLP receiver would store them."""
    specs = {spec.name: spec for spec in METRICS}
    values = {}
    for metric in request(gather, {"service.name": "s"}, 1).resource_metrics[0].scope_metrics[0].metrics:
        spec = specs[metric.name]
        assert (metric.unit, metric.description) == (spec.unit, spec.meaning)
        data = getattr(metric, {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}[spec.instrument])
        for point in data.data_points:
            labels = tuple(sorted((each.key, each.value.string_value) for each in point.attributes))
            if spec.instrument == "histogram":
                values[spec.prometheus_name + "_count", labels] = point.count
                values[spec.prometheus_name + "_sum", labels] = point.sum
                total = 0
                for bound, count in zip([*map(str, point.explicit_bounds), "+Inf"], point.bucket_counts, strict=True):
                    total += count
                    values[spec.prometheus_name + "_bucket", tuple(sorted((*labels, ("le", bound))))] = total
            else:
                values[spec.prometheus_name, labels] = point.as_double
    return values


def test_same_numbers_as_a_scrape(gather):
    """The request contains exactly the samples of a scrape, with the same labels and values."""
    page = text_string_to_metric_families(render(gather()[1]).decode())
    scraped = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in page for sample in family.samples}
    assert by_otlp(gather) == scraped


def test_stream_is_cumulative_and_has_one_identity(gather):
    """Sums and histograms are cumulative since the creation of the store and identified by its id, in every process and after a restart."""
    stored, _ = gather()
    first, second = (request(gather, {"service.name": "s"}, now) for now in (10, 20))
    assert first.resource_metrics[0].resource == second.resource_metrics[0].resource
    attributes = {each.key: each.value.string_value for each in first.resource_metrics[0].resource.attributes}
    assert attributes == {"service.name": "s", "service.instance.id": stored.id}
    for metric in second.resource_metrics[0].scope_metrics[0].metrics:
        data = getattr(metric, metric.WhichOneof("data"))
        if metric.WhichOneof("data") != "gauge":
            assert data.aggregation_temporality == AGGREGATION_TEMPORALITY_CUMULATIVE
            assert {(point.start_time_unix_nano, point.time_unix_nano) for point in data.data_points} == {(int(stored.created * 1e9), 20)}


def test_exemplars_refer_to_counted_spans(gather):
    """Each exemplar has the ids of a span that was counted."""
    exemplars = set()
    for metric in request(gather, {}, 1).resource_metrics[0].scope_metrics[0].metrics:
        for point in getattr(metric, metric.WhichOneof("data")).data_points:
            exemplars |= {(each.trace_id.hex(), each.span_id.hex()) for each in point.exemplars}
    assert exemplars
    assert exemplars <= {(span.trace_id, span.span_id) for span in TREE}


def build_publisher(environ, resource=None):
    """Build the publisher of these variables, as the exporter `prometheus` does."""
    interval = config.read({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c", **environ}, exporters="prometheus").prometheus.otlp_interval
    return OtlpMetricsPublisher(endpoints.otlp_metrics(environ), interval, lambda: resource or {})


def test_request_reaches_the_collector(gather, collector):
    """The URL is the base endpoint plus /v1/metrics; headers are decoded; gzip is used if configured."""
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url + "/",
        "OTEL_EXPORTER_OTLP_HEADERS": "X-Key=a%20b,x-other=c",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
    }
    build_publisher(environ, {"service.name": "s"}).publish(gather)
    [(path, headers, body)] = collector.requests
    assert path == "/v1/metrics"
    assert (headers["x-key"], headers["x-other"], headers["content-type"]) == ("a b", "c", "application/x-protobuf")
    assert ExportMetricsServiceRequest.FromString(gzip.decompress(body)).resource_metrics


def test_metrics_variables_take_precedence(gather, collector):
    """The endpoint for metrics is used unchanged."""
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://192.0.2.1",
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": collector.url + "/own",
        "OTEL_METRIC_EXPORT_INTERVAL": "5000",
    }
    publisher = build_publisher(environ)
    publisher.publish(gather)
    assert (collector.requests[0][0], publisher.interval) == ("/own", 5.0)


@pytest.mark.parametrize(("text", "seconds"), [("", 10), ("2500", 2.5), ("10", 10)])
def test_timeout_is_read_as_for_spans(text, seconds):
    """As for spans, small numbers are seconds, because the Python SDK reads them so."""
    assert build_publisher({"OTEL_EXPORTER_OTLP_TIMEOUT": text}).endpoint.timeout == seconds


@pytest.mark.parametrize("status", [302, 400, 401, 413, 429, 500, 503])
def test_rejected_metrics_raise(gather, collector, status):
    """An error status raises ExporterError. Nothing is lost, because the next request contains everything."""
    collector.status = status
    with pytest.raises(ExporterError, match=f"answered {status}"):
        build_publisher({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}).publish(gather)


def test_partial_success_is_logged_once(gather, collector, caplog):
    """The message of a server that rejects some points is logged once."""
    answer = ExportMetricsServiceResponse()
    answer.partial_success.rejected_data_points = 3
    answer.partial_success.error_message = "too old"
    collector.answer = answer.SerializeToString()
    publisher = build_publisher({"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url})
    publisher.publish(gather)
    publisher.publish(gather)
    assert [record.message for record in caplog.records] == [f"{collector.url}/v1/metrics rejected 3 metric points: too old"]


@pytest.mark.parametrize(
    "environ",
    [
        {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://api.lmnr.ai/v1/metrics"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://lmnr.internal:8000", "LMNR_BASE_URL": "http://lmnr.internal", "LMNR_HTTP_PORT": "8000"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"},
        {"OTEL_METRIC_EXPORT_INTERVAL": "often"},
        {"OTEL_METRIC_EXPORT_INTERVAL": "0"},
        {"OTEL_EXPORTER_OTLP_TIMEOUT": "soon"},
    ],
    ids=["laminar", "own laminar", "no url", "interval", "no interval", "timeout"],
)
def test_invalid_setting(environ):
    """Laminar as target and invalid values raise ConfigError."""
    with pytest.raises(ConfigError):
        build_publisher(environ)
