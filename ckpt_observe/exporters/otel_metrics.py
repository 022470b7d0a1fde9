"""The same metrics by OTLP: cumulative sums, gauges and histograms with exemplars, over HTTP as protobuf.

One process pushes the sum of all (see `metrics`), so there is one stream, named by the store's id, that goes on over restarts and
take-overs; the start of its sums is when the store was made. Never to Laminar, which takes spans only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1 import metrics_pb2 as otlp

from ckpt_observe import endpoints
from ckpt_observe.errors import ConfigError
from ckpt_observe.exporters.metrics import Gather
from ckpt_observe.exporters.otlp import USER_AGENT
from ckpt_observe.exporters.otlp_http import HttpTransport
from ckpt_observe.metricstore.points import Counter, Exemplar, Histogram
from ckpt_observe.metricstore.snapshot import Series, Snapshot
from ckpt_observe.metricstore.store import Sum
from ckpt_observe.semconv.metrics import MetricSpec

logger = logging.getLogger("ckpt_observe")

_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"


class OtlpMetrics:
    """Pushes to a collector, as OpenTelemetry's variables say."""

    name = "otlp"

    def __init__(self, environ: Mapping[str, str], resource: Mapping[str, str]) -> None:
        endpoint = endpoints.otlp_metrics(environ)
        self._endpoint, self.timeout = endpoint, endpoint.timeout
        self.every = _interval(environ.get(_INTERVAL) or "60000")
        self._resource = resource
        self._told = False

    def publish(self, gather: Gather) -> None:
        body = encoded(*gather(), self._resource, time.time_ns()).SerializeToString()
        with closing(HttpTransport(self._endpoint, USER_AGENT)) as transport:  # a minute apart: no connection is kept
            self._look_at(transport.send(body))

    def _look_at(self, answer: bytes) -> None:
        try:
            part = ExportMetricsServiceResponse.FromString(answer).partial_success
        except Exception:  # not protobuf: some collectors answer with nothing or with JSON, and have it nevertheless
            return
        if part.rejected_data_points and not self._told:
            self._told = True
            logger.warning("ckpt_observe: the collector refused %d metric points: %s", part.rejected_data_points, part.error_message[:200])

    def close(self) -> None: ...

    forget = close


def encoded(stored: Sum, snapshot: Snapshot, resource: Mapping[str, str], now: int) -> ExportMetricsServiceRequest:
    """A snapshot as one request; `now` in Unix ns."""
    request = ExportMetricsServiceRequest()
    whole = request.resource_metrics.add()
    whole.resource.attributes.extend(_attributes({**resource, "service.instance.id": stored.id}))
    scope = whole.scope_metrics.add()
    scope.scope.name = "ckpt_observe"
    start = int(stored.created * 1e9)
    for spec, series in snapshot:
        metric = scope.metrics.add(name=spec.name, description=spec.meaning, unit=spec.unit)
        _POINTS[spec.instrument](metric, spec, series, {"start_time_unix_nano": start, "time_unix_nano": now})
    return request


def _sum(metric: otlp.Metric, spec: MetricSpec, series: Series, times: dict[str, int]) -> None:
    metric.sum.is_monotonic = True
    metric.sum.aggregation_temporality = otlp.AGGREGATION_TEMPORALITY_CUMULATIVE
    for values, point in series.items():
        if isinstance(point, Counter):
            number = metric.sum.data_points.add(as_double=point.value, **times)
            number.attributes.extend(_labels(spec, values))
            number.exemplars.extend([_exemplar(point.exemplar)] if point.exemplar else [])


def _gauge(metric: otlp.Metric, spec: MetricSpec, series: Series, times: dict[str, int]) -> None:
    for values, point in series.items():
        if isinstance(point, float):
            number = metric.gauge.data_points.add(as_double=point, time_unix_nano=times["time_unix_nano"])
            number.attributes.extend(_labels(spec, values))


def _histogram(metric: otlp.Metric, spec: MetricSpec, series: Series, times: dict[str, int]) -> None:
    metric.histogram.aggregation_temporality = otlp.AGGREGATION_TEMPORALITY_CUMULATIVE
    for values, point in series.items():
        if isinstance(point, Histogram):
            filled = metric.histogram.data_points.add(count=sum(point.counts), sum=point.sum, **times)
            filled.bucket_counts.extend(point.counts)
            filled.explicit_bounds.extend(spec.buckets)
            filled.attributes.extend(_labels(spec, values))
            filled.exemplars.extend([_exemplar(each) for each in point.exemplars.values()])


_POINTS: Final = {"counter": _sum, "gauge": _gauge, "histogram": _histogram}


def _exemplar(exemplar: Exemplar) -> otlp.Exemplar:
    trace, span = bytes.fromhex(exemplar.trace_id), bytes.fromhex(exemplar.span_id)
    return otlp.Exemplar(as_double=exemplar.value, time_unix_nano=int(exemplar.time * 1e9), trace_id=trace, span_id=span)


def _labels(spec: MetricSpec, values: tuple[str, ...]) -> list[KeyValue]:
    return _attributes(dict(zip(spec.labels, values, strict=True)))


def _attributes(pairs: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=str(value).encode("utf-8", "replace").decode())) for key, value in pairs.items()]


def _interval(text: str) -> float:
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(f"{_INTERVAL}: '{text}' is not a number of milliseconds above zero")
    return int(text) / 1000
