"""Pushes the metrics that Prometheus would scrape as OTLP over HTTP: cumulative sums, gauges, and histograms with exemplars.

One process pushes the total of all (see `metrics`). There is one stream, identified by the id of the metric store; it continues across
restarts and takeovers, and the start time of its sums is the creation of that store. Never used for Laminar, which accepts spans only.

`opentelemetry-exporter-otlp` encodes the metrics. Its exporter does not send them: it retries within the call, follows redirects, ignores
partial success, and gives no reason for a failure. Our transport for spans does not have these problems.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics import Exemplar as SdkExemplar
from opentelemetry.sdk.metrics import export as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ckpt_observe import __version__
from ckpt_observe.endpoints import Endpoint
from ckpt_observe.exporters.metrics import Gather
from ckpt_observe.exporters.otlp import USER_AGENT
from ckpt_observe.exporters.otlp_http import HttpTransport
from ckpt_observe.metricstore.metric_store import StoredMetrics
from ckpt_observe.metricstore.points import Counter, Exemplar, Histogram
from ckpt_observe.metricstore.snapshot import Series, Snapshot
from ckpt_observe.semconv.metrics import MetricSpec
from ckpt_observe.semconv.spans import SCHEMA_URL, SCOPE
from ckpt_observe.support.http_client import import_libraries
from ckpt_observe.support.logs import WarningLog

_CUMULATIVE: Final = sdk.AggregationTemporality.CUMULATIVE
_SCOPE: Final = InstrumentationScope(SCOPE, __version__, SCHEMA_URL)
_Times: TypeAlias = dict[str, int]
"""Start and time of all data points of a request, by field name."""


class OtlpMetricsPublisher:
    """Pushes the metrics to an OTel Collector every `interval` seconds. `resource` returns the attributes of the service; it may wait."""

    name = "otlp"

    def __init__(self, endpoint: Endpoint, interval: float, resource: Callable[[], Mapping[str, Any]]) -> None:
        self.endpoint, self.interval = endpoint, interval
        self._resource = resource
        self._warnings = WarningLog()
        import_libraries()

    def publish(self, gather: Gather) -> None:
        """Push the metrics. ExporterError if the OTel Collector does not accept them. Nothing is lost: each push contains the totals."""
        body = encode_snapshot(*gather(), self._resource(), time.time_ns())
        with closing(HttpTransport(self.endpoint, USER_AGENT)) as transport:
            self._check_rejected(transport.send(body))

    def _check_rejected(self, answer: bytes) -> None:
        try:
            partial_success = ExportMetricsServiceResponse.FromString(answer).partial_success
        except DecodeError:  # some servers accept the metrics and answer with JSON
            return
        if (count := partial_success.rejected_data_points) > 0:
            message = self.endpoint.quote(partial_success.error_message)
            self._warnings.warn_once("rejected", "%s rejected %d metric points%s", self.endpoint.shown, count, message)

    def close(self) -> None: ...

    def close_inherited(self) -> None: ...


def encode_snapshot(stored: StoredMetrics, snapshot: Snapshot, resource: Mapping[str, Any], now: int) -> bytes:
    """Return a snapshot as one OTLP request. `stored` gives the id and start time of the stream; `now` is in Unix nanoseconds."""
    times = {"start_time_unix_nano": int(stored.created * 1e9), "time_unix_nano": now}
    metrics = [sdk.Metric(spec.name, spec.meaning, spec.unit, _data(spec, series, times)) for spec, series in snapshot]
    scope_metrics = sdk.ScopeMetrics(_SCOPE, metrics, SCHEMA_URL)
    attributes = {**resource, "service.instance.id": stored.id}
    attributes = {key: _clean(value) if isinstance(value, str) else value for key, value in attributes.items()}
    resource_metrics = sdk.ResourceMetrics(Resource(attributes, SCHEMA_URL), [scope_metrics], SCHEMA_URL)
    request = encode_metrics(sdk.MetricsData([resource_metrics]))
    for scope in request.resource_metrics[0].scope_metrics:
        scope.schema_url = SCHEMA_URL  # older versions of the encoder leave it out
    body: bytes = request.SerializeToString()
    return body


def _data(spec: MetricSpec, series: Series, times: _Times) -> sdk.Sum | sdk.Gauge | sdk.Histogram:
    points = [(_attributes(spec, values), point) for values, point in series.items()]
    if spec.instrument == "histogram":
        histograms = [_histogram(spec, attributes, point, times) for attributes, point in points if isinstance(point, Histogram)]
        return sdk.Histogram(histograms, _CUMULATIVE)
    numbers = [_number(attributes, point, times) for attributes, point in points if not isinstance(point, Histogram)]
    if spec.instrument == "counter":
        return sdk.Sum(numbers, _CUMULATIVE, is_monotonic=True)
    return sdk.Gauge([replace(number, start_time_unix_nano=0) for number in numbers])


def _number(attributes: dict[str, str], point: Counter | float, times: _Times) -> sdk.NumberDataPoint:
    value, exemplar = (point.value, point.exemplar) if isinstance(point, Counter) else (point, None)
    return sdk.NumberDataPoint(attributes, value=value, exemplars=[_exemplar(exemplar)] if exemplar else [], **times)


def _histogram(spec: MetricSpec, attributes: dict[str, str], point: Histogram, times: _Times) -> sdk.HistogramDataPoint:
    unknown: Any = None  # minimum and maximum are optional in OTLP, but not in the types of the SDK
    return sdk.HistogramDataPoint(
        attributes,
        count=sum(point.counts),
        sum=point.sum,
        bucket_counts=point.counts,
        explicit_bounds=spec.buckets,
        min=unknown,
        max=unknown,
        exemplars=[_exemplar(each) for each in point.exemplars.values()],
        **times,
    )


def _exemplar(exemplar: Exemplar) -> SdkExemplar:
    ids = {"span_id": int(exemplar.span_id, 16), "trace_id": int(exemplar.trace_id, 16)}
    return SdkExemplar({}, exemplar.value, int(exemplar.time * 1e9), **ids)


def _attributes(spec: MetricSpec, values: tuple[str, ...]) -> dict[str, str]:
    return {label: _clean(value) for label, value in zip(spec.labels, values, strict=True)}


def _clean(value: str) -> str:
    """Replace what UTF-8 cannot encode: protobuf would reject the whole request."""
    return str(value).encode("utf-8", "replace").decode()
