"""Metrics as Prometheus reads them; read back by prometheus_client's own parsers."""

from __future__ import annotations

import pytest
from prometheus_client import openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ckpt_observe.exporters.prometheus_text import OPENMETRICS, TEXT, negotiate, render
from ckpt_observe.journal.activity import Activity
from ckpt_observe.metricstore.snapshot import build_snapshot
from ckpt_observe.metricstore.store import MetricStore
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import METRICS
from ckpt_observe.testing.spans import make_tree

ODD = 'a"b\\c\nd{e=,} ü🧭 100%s %d\0'


def exposed(tmp_path, content_type, *trees):
    store = MetricStore(tmp_path / "metrics.db")
    for tree in trees:
        store.add_spans(tree)
    text = render(build_snapshot(store.read(), Activity(), "1"), content_type).decode()
    store.close()
    return text


@pytest.mark.parametrize(("content_type", "parse"), [(TEXT, parse_text), (OPENMETRICS, parse_openmetrics)], ids=["text", "openmetrics"])
def test_page_is_what_the_table_says(tmp_path, content_type, parse):
    """Every family has the name, type, unit and labels of its spec; none is there twice; there is no `_created`."""
    page = exposed(tmp_path, content_type, make_tree(1, operations=("save", "restore"), outcome="error"))
    families = list(parse(page))
    by_name = {spec.prometheus_family: spec for spec in METRICS}
    assert len({family.name for family in families}) == len(families) > 15
    assert "_created" not in page
    for family in families:
        spec = by_name[family.name]
        assert (family.type, family.documentation) == (spec.instrument, spec.meaning)
        assert {label for sample in family.samples for label in sample.labels} - {"le"} == set(spec.labels)
        if content_type == OPENMETRICS:
            assert family.unit == spec.prometheus_unit


@pytest.mark.parametrize(("content_type", "parse"), [(TEXT, parse_text), (OPENMETRICS, parse_openmetrics)], ids=["text", "openmetrics"])
def test_odd_names_round_trip(tmp_path, content_type, parse):
    """A task may be called anything; the page stays whole."""
    families = {family.name: family for family in parse(exposed(tmp_path, content_type, make_tree(1, task=ODD)))}
    tasks = {sample.labels["task"] for sample in families["checkpoint_operation_duration_seconds"].samples}
    assert tasks == {ODD.replace("\0", "�")}


def test_histogram_is_cumulative_with_canonical_bounds(tmp_path):
    """Buckets never fall, the last is the count, and bounds are written as floats."""
    [family] = [
        each
        for each in parse_text(exposed(tmp_path, TEXT, make_tree(1), make_tree(2)))
        if each.name == metrics.PHASE_DURATION.prometheus_family
    ]
    write = [sample for sample in family.samples if sample.labels["phase"] == "write"]
    buckets = [sample.value for sample in write if sample.name.endswith("_bucket")]
    bounds = [sample.labels["le"] for sample in write if sample.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert bounds == [*(str(float(bound)) for bound in metrics.DURATION_BUCKETS), "+Inf"]
    assert [sample.value for sample in write if sample.name.endswith("_count")] == [2.0] == [buckets[-1]]


def test_exemplars_are_real_and_only_in_openmetrics(tmp_path):
    """A bucket leads to a trace that was counted."""
    tree = make_tree(7)
    families = list(parse_openmetrics(exposed(tmp_path, OPENMETRICS, tree)))
    found = {
        (sample.exemplar.labels["trace_id"], sample.exemplar.labels["span_id"])
        for family in families
        for sample in family.samples
        if sample.exemplar
    }
    assert found
    assert found <= {(span.trace_id, span.span_id) for span in tree}
    assert "trace_id" not in exposed(tmp_path, TEXT, tree)


def test_negotiation():
    """Prometheus asks for OpenMetrics, a person with curl for nothing."""
    assert negotiate("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3") == OPENMETRICS
    assert negotiate("*/*") == negotiate("") == TEXT
    assert OPENMETRICS == openmetrics.exposition.CONTENT_TYPE_LATEST
