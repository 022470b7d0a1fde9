"""Our text writer, checked with the parsers of prometheus_client."""

from __future__ import annotations

import pytest
from prometheus_client import openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from ckpt_observe.exporters.prometheus_text import OPENMETRICS, TEXT, negotiate, render
from ckpt_observe.journal.activity import Activity
from ckpt_observe.metricstore.metric_store import MetricStore
from ckpt_observe.metricstore.snapshot import build_snapshot
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import METRICS
from ckpt_observe.testing.spans import make_tree

ODD = 'a"b\\c\nd{e=,} ü🧭 100%s %d\0'


def render_page(tmp_path, content_type, *trees):
    store = MetricStore(tmp_path / "metrics.db")
    for tree in trees:
        store.add_spans(tree)
    text = render(build_snapshot(store.read(), Activity(), "1"), content_type).decode()
    store.close()
    return text


@pytest.mark.parametrize(("content_type", "parse"), [(TEXT, parse_text), (OPENMETRICS, parse_openmetrics)], ids=["text", "openmetrics"])
def test_page_matches_the_metric_table(tmp_path, content_type, parse):
    """Every family has the name, type, unit and labels of its spec and occurs once; there are no `_created` samples."""
    page = render_page(tmp_path, content_type, make_tree(1, operations=("save", "restore"), outcome="error"))
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
    """Any task name gives a valid page."""
    families = {family.name: family for family in parse(render_page(tmp_path, content_type, make_tree(1, task=ODD)))}
    tasks = {sample.labels["task"] for sample in families["checkpoint_operation_duration_seconds"].samples}
    assert tasks == {ODD.replace("\0", "�")}


def test_histogram_is_cumulative_with_canonical_bounds(tmp_path):
    """Buckets are cumulative, the last one is the count, and bounds are written as floats."""
    [family] = [
        each
        for each in parse_text(render_page(tmp_path, TEXT, make_tree(1), make_tree(2)))
        if each.name == metrics.PHASE_DURATION.prometheus_family
    ]
    write = [sample for sample in family.samples if sample.labels["phase"] == "write"]
    buckets = [sample.value for sample in write if sample.name.endswith("_bucket")]
    bounds = [sample.labels["le"] for sample in write if sample.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert bounds == [*(str(float(bound)) for bound in metrics.DURATION_BUCKETS), "+Inf"]
    assert [sample.value for sample in write if sample.name.endswith("_count")] == [2.0] == [buckets[-1]]


def test_exemplars_only_in_openmetrics(tmp_path):
    """Exemplars refer to spans that were counted; the text format has none."""
    tree = make_tree(7)
    families = list(parse_openmetrics(render_page(tmp_path, OPENMETRICS, tree)))
    exemplars = {
        (sample.exemplar.labels["trace_id"], sample.exemplar.labels["span_id"])
        for family in families
        for sample in family.samples
        if sample.exemplar
    }
    assert exemplars
    assert exemplars <= {(span.trace_id, span.span_id) for span in tree}
    assert "trace_id" not in render_page(tmp_path, TEXT, tree)


def test_negotiation():
    """Prometheus asks for OpenMetrics and gets it; curl gets the text format."""
    assert negotiate("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3") == OPENMETRICS
    assert negotiate("*/*") == negotiate("") == TEXT
    assert OPENMETRICS == openmetrics.exposition.CONTENT_TYPE_LATEST
