"""Checkpoint metrics in a program's own `prometheus_client` registry, so that no second port is needed.

    from prometheus_client import REGISTRY
    from ckpt_observe import PrometheusCollector

    REGISTRY.register(PrometheusCollector())

The exporter `prometheus` must be enabled, because it writes the metrics. `OTEL_EXPORTER_PROMETHEUS_PORT=none` turns off its own endpoint.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar as PrometheusExemplar

from ckpt_observe import __version__, config
from ckpt_observe.exporters.metrics import Gather
from ckpt_observe.metricstore.points import Counter, Exemplar, Histogram
from ckpt_observe.metricstore.snapshot import Series, Snapshot, gather
from ckpt_observe.semconv.metrics import METRICS, MetricSpec
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import WarningLog


class PrometheusCollector(Collector):
    """Collects the checkpoint metrics of a state directory: those of all its processes, as `/metrics` would serve them.

    `dir` is the state directory, by default that of the settings (`CKPT_OBSERVE_DIR`).
    """

    def __init__(self, dir: str | os.PathLike[str] | None = None) -> None:
        self._directory = Path(config.read(dir=dir).dir)
        self._warnings = WarningLog()

    def describe(self) -> Iterator[Metric]:
        """Yield all metrics without values, so that a registry can detect duplicate names. Does not read the store."""
        for spec in METRICS:
            yield _family(spec, {})

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics. If they cannot be read, log a warning and yield none: the program's own must still be served."""
        try:
            families = list(to_families(gather(self._directory, __version__)[1]))
            self._warnings.clear("read")
        except Exception as error:  # locked for too long, or damaged in any way
            raise_host_exception(error)
            message = "Checkpoint metrics in %s cannot be read: %s. They are missing from this scrape."
            self._warnings.warn_once("read", message, self._directory, error)
            return
        yield from families


class SnapshotCollector(Collector):
    """Collects the metrics that `gather` returns, for `push_to_gateway`. Unlike `PrometheusCollector`, it raises if they cannot be read."""

    def __init__(self, gather: Gather) -> None:
        self._gather = gather

    def collect(self) -> Iterator[Metric]:
        yield from to_families(self._gather()[1])


def to_families(snapshot: Snapshot) -> Iterator[Metric]:
    """Convert a snapshot to the metric families of prometheus_client."""
    for spec, series in snapshot:
        yield _family(spec, series)


def _family(spec: MetricSpec, series: Series) -> Metric:
    name = spec.prometheus_family
    family = Metric(name, spec.meaning, spec.instrument, spec.prometheus_unit)
    for values, point in series.items():
        labels = {label: _clean(value) for label, value in zip(spec.labels, values, strict=True)}
        if isinstance(point, Histogram):
            _add_histogram(family, spec, labels, point)
        elif isinstance(point, Counter):
            family.add_sample(f"{name}_total", labels, point.value, exemplar=_exemplar(point.exemplar))
        else:
            family.add_sample(name, labels, point)
    return family


def _add_histogram(family: Metric, spec: MetricSpec, labels: dict[str, str], point: Histogram) -> None:
    bounds = [*(repr(bound) for bound in spec.buckets), "+Inf"]
    totals = list(accumulate(point.counts))
    for bucket, (bound, total) in enumerate(zip(bounds, totals, strict=True)):
        exemplar = _exemplar(point.exemplars.get(bucket))
        family.add_sample(f"{family.name}_bucket", {**labels, "le": bound}, total, exemplar=exemplar)
    family.add_sample(f"{family.name}_count", labels, totals[-1])
    family.add_sample(f"{family.name}_sum", labels, point.sum)


def _exemplar(exemplar: Exemplar | None) -> PrometheusExemplar | None:
    if exemplar is None:
        return None
    return PrometheusExemplar({"trace_id": exemplar.trace_id, "span_id": exemplar.span_id}, exemplar.value, exemplar.time)


def _clean(value: str) -> str:
    """Replace characters that cannot be encoded, as `prometheus_text` does: one bad label would fail the program's whole page."""
    return value.replace("\0", "�").encode("utf-8", "replace").decode()
