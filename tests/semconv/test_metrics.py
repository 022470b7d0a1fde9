"""The table of metrics."""

from __future__ import annotations

import re

import pytest

from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import METRICS, MetricSpec

every = pytest.mark.parametrize("spec", METRICS, ids=lambda spec: spec.name)


def test_every_spec_is_in_the_table_once():
    """Every defined metric is in `METRICS`, and therefore served, documented and sent."""
    defined = [value for value in vars(metrics).values() if isinstance(value, MetricSpec)]
    assert sorted(spec.name for spec in defined) == sorted(spec.name for spec in METRICS)
    assert len({spec.prometheus_name for spec in METRICS}) == len(METRICS)


@every
def test_prometheus_name_is_valid(spec):
    """A name has letters, digits and underscores, its unit once, and `_total` if and only if it is a counter."""
    name = spec.prometheus_name
    assert re.fullmatch(r"(checkpoint|ckpt_observe)(_[a-z0-9]+)+", name)
    assert name.endswith("_total") == (spec.instrument == "counter")
    words = name.split("_")
    assert [word for word in ("seconds", "bytes", "total") if words.count(word) > 1] == []
    if spec.prometheus_unit:
        assert name.removesuffix("_total").endswith("_" + spec.prometheus_unit)


@every
def test_labels_are_bounded(spec):
    """No ID, path, step or message is a label, because their values are unbounded."""
    assert not {"id", "task_id", "checkpoint", "path", "location", "step", "message", "user", "session"} & set(spec.labels)


@every
def test_only_histograms_have_buckets(spec):
    """Only histograms have buckets, in ascending order."""
    assert bool(spec.buckets) == (spec.instrument == "histogram")
    assert list(spec.buckets) == sorted(set(spec.buckets))


def test_well_known_names():
    """Names that users' dashboards and alerts rely on do not change."""
    assert metrics.OPERATIONS.prometheus_name == "checkpoint_operations_total"
    assert metrics.OPERATION_DURATION.prometheus_name == "checkpoint_operation_duration_seconds"
    assert metrics.THROUGHPUT.prometheus_name == "checkpoint_throughput_bytes_per_second"
    assert metrics.LAST_SUCCESS.prometheus_name == "checkpoint_last_success_timestamp_seconds"
    assert metrics.RATIO.prometheus_name == "checkpoint_compression_ratio"
    assert metrics.IO.prometheus_name == "checkpoint_io_bytes_total"
