"""A snapshot as Prometheus reads it: the text format 0.0.4, or OpenMetrics 1.0 with exemplars.

Written here and not by prometheus_client, whose writer takes 24 to 34 µs a line: half a second for a hundred tasks. What it writes is
read back by prometheus_client's parsers in the tests.
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

_HERE: Final = "\0"
"""Where the labels go in a template; no label has it, since a NUL is not allowed in one."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\"", "\0": "�"})


def negotiated(accept: str) -> str:
    """The content type for an `Accept` header. Exemplars exist only in OpenMetrics."""
    return OPENMETRICS if "application/openmetrics-text" in accept else TEXT


def render(snapshot: Snapshot, content_type: str = TEXT) -> bytes:
    """The snapshot as one page."""
    rich = content_type == OPENMETRICS
    lines = [line for spec, series in snapshot for line in _family(spec, series, rich=rich)]
    return "".join([*lines, "# EOF\n" if rich else ""]).encode("utf-8", "replace")


def _family(spec: MetricSpec, series: Series, *, rich: bool) -> Iterator[str]:
    name = spec.prometheus_family
    title = name if rich else spec.prometheus_name  # OpenMetrics names the family, the text format the sample
    yield f"# HELP {title} {spec.meaning}\n# TYPE {title} {spec.instrument}\n"
    if rich and spec.prometheus_unit:
        yield f"# UNIT {title} {spec.prometheus_unit}\n"
    template = _template(name, spec)
    for values, point in series.items():
        labels = _labels(spec.labels, values)
        if isinstance(point, Histogram):
            yield _histogram(template, labels, point, rich=rich)
        elif isinstance(point, Counter):
            tail = _exemplar(point.exemplar) if rich and point.exemplar else ""
            yield f"{name}_total{labels and f'{{{labels}}}'} {point.value!r}{tail}\n"
        else:
            yield f"{name}{labels and f'{{{labels}}}'} {point!r}\n"


def _histogram(template: str, labels: str, point: Histogram, *, rich: bool) -> str:
    """One formatting of a template for all its lines: three times as fast as line by line."""
    tails = [""] * len(point.counts)
    if rich:
        for bucket, exemplar in point.exemplars.items():
            tails[bucket] = _exemplar(exemplar)
    totals = tuple(accumulate(point.counts))
    numbers = (*chain.from_iterable(zip(totals, tails, strict=True)), totals[-1], point.sum)
    return template.replace(_HERE, labels.replace("%", "%%")) % numbers


def _template(name: str, spec: MetricSpec) -> str:
    comma = "," if spec.labels else ""
    # canonical bounds: `1.0`, never `1`, so that `le="1.0"` is found by that name
    bounds = [*(repr(bound) for bound in spec.buckets), "+Inf"]
    buckets = "".join(f'{name}_bucket{{{_HERE}{comma}le="{bound}"}} %d%s\n' for bound in bounds)
    return f"{buckets}{name}_count{{{_HERE}}} %d\n{name}_sum{{{_HERE}}} %r\n"


@lru_cache(maxsize=1 << 14)
def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    return ",".join([f'{name}="{value.translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True)])


def _exemplar(exemplar: Exemplar) -> str:
    return f' # {{trace_id="{exemplar.trace_id}",span_id="{exemplar.span_id}"}} {exemplar.value!r} {exemplar.time:.3f}'
