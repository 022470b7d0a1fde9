"""Writes a snapshot in the formats of Prometheus: text format 0.0.4, and OpenMetrics 1.0 with exemplars.

Used for scrapes instead of prometheus_client's `generate_latest`, which takes about ten times as long for the same page (see
`python -m benchmarks.metrics`). Tests read the result with prometheus_client's parsers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, chain
from typing import Final

from ckpt_observe.metricstore.points import Counter, Exemplar, Histogram
from ckpt_observe.metricstore.snapshot import Series, Snapshot
from ckpt_observe.semconv.metrics import MetricSpec

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_LABELS_MARK: Final = "\0"
"""Marks the place of the labels in a template. No label contains it: NUL is replaced in labels."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\"", "\0": "�"})


def negotiate(accept: str) -> str:
    """Return the content type for an `Accept` header: OpenMetrics, which has exemplars, if the client accepts it, else the text format."""
    return OPENMETRICS if "application/openmetrics-text" in accept else TEXT


def render(snapshot: Snapshot, content_type: str = TEXT) -> bytes:
    """Return the snapshot as one page in the format of `content_type`."""
    openmetrics = content_type == OPENMETRICS
    lines = [line for spec, series in snapshot for line in _family(spec, series, openmetrics=openmetrics)]
    return "".join([*lines, "# EOF\n" if openmetrics else ""]).encode("utf-8", "replace")


def _family(spec: MetricSpec, series: Series, *, openmetrics: bool) -> Iterator[str]:
    name = spec.prometheus_family
    title = name if openmetrics else spec.prometheus_name  # OpenMetrics names the family, the text format the sample
    yield f"# HELP {title} {spec.meaning}\n# TYPE {title} {spec.instrument}\n"
    if openmetrics and spec.prometheus_unit:
        yield f"# UNIT {title} {spec.prometheus_unit}\n"
    template = _histogram_template(name, spec)
    for values, point in series.items():
        labels = _format_labels(spec.labels, values)
        if isinstance(point, Histogram):
            yield _histogram(template, labels, point, openmetrics=openmetrics)
        elif isinstance(point, Counter):
            suffix = _format_exemplar(point.exemplar) if openmetrics and point.exemplar else ""
            yield f"{name}_total{labels and f'{{{labels}}}'} {point.value!r}{suffix}\n"
        else:
            yield f"{name}{labels and f'{{{labels}}}'} {point!r}\n"


def _histogram(template: str, labels: str, point: Histogram, *, openmetrics: bool) -> str:
    """Format all lines of a histogram with one template, three times as fast as line by line."""
    suffixes = [""] * len(point.counts)
    if openmetrics:
        for bucket, exemplar in point.exemplars.items():
            suffixes[bucket] = _format_exemplar(exemplar)
    totals = tuple(accumulate(point.counts))
    numbers = (*chain.from_iterable(zip(totals, suffixes, strict=True)), totals[-1], point.sum)
    return template.replace(_LABELS_MARK, labels.replace("%", "%%")) % numbers


def _histogram_template(name: str, spec: MetricSpec) -> str:
    comma = "," if spec.labels else ""
    # Canonical bounds: `1.0`, never `1`, so that queries for `le="1.0"` match.
    bounds = [*(repr(bound) for bound in spec.buckets), "+Inf"]
    buckets = "".join(f'{name}_bucket{{{_LABELS_MARK}{comma}le="{bound}"}} %d%s\n' for bound in bounds)
    return f"{buckets}{name}_count{{{_LABELS_MARK}}} %d\n{name}_sum{{{_LABELS_MARK}}} %r\n"


@lru_cache(maxsize=1 << 14)
def _format_labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True)])


def _format_exemplar(exemplar: Exemplar) -> str:
    return f' # {{trace_id="{exemplar.trace_id}",span_id="{exemplar.span_id}"}} {exemplar.value!r} {exemplar.time:.3f}'
