"""The metrics in Prometheus, OTel Collector and Pushgateway agree with the spans in the local store."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import backend_spans
import pytest
import telemetry
from processes import eventually, free_port, program
from prometheus_client.parser import text_string_to_metric_families

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.services

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"

EXPECTED = {("save", "ok"): 4, ("save", "error"): 1, ("save", "interrupted"): 1, ("restore", "ok"): 1}
"""Operations of `work` and `resume`."""


def run_life(run_agent, **variables):
    for part in ("work", "resume"):
        run_agent(part, "prometheus,local", **variables)


def count_spans(spans):
    return Counter((span.attributes[names.OPERATION], span.attributes[names.OUTCOME]) for span in spans)


def operations(state):
    return [span for span in backend_spans.from_local_store(state) if names.OPERATION in span.attributes]


def numbers_of(spans):
    """Return operations by outcome, their total seconds, and the stored bytes."""
    saves = [span for span in spans if span.attributes[names.OPERATION] == "save"]
    return (
        count_spans(spans),
        pytest.approx(sum(span.seconds for span in spans)),
        sum(span.attributes.get(names.SIZE_STORED, 0) for span in saves),
    )


def numbers_in(prometheus, job):
    """Return the same numbers from Prometheus."""
    [seconds] = prometheus.query(f'sum(checkpoint_operation_duration_seconds_sum{{job="{job}"}})').values()
    [stored] = prometheus.query(f'sum(checkpoint_size_bytes_sum{{job="{job}", kind="stored", operation="save"}})').values()
    return counts_in(prometheus, job), seconds, stored


def counts_in(prometheus, job):
    return prometheus.query(f'sum by (operation, outcome) (checkpoint_operations_total{{job="{job}"}}) > 0')


@pytest.fixture
def scraped(prometheus, run_agent, agent_process, state):
    """Run a process that Prometheus scrapes, after two others on the same port and a killed one. Yields the operations in the local store."""
    port = {"OTEL_EXPORTER_PROMETHEUS_PORT": prometheus.scraped}
    run_life(run_agent, **port)
    with agent_process("steps", "prometheus,local", **port) as process:
        process.stdin.write(b"\n" * 10)
        process.stdin.flush()
        expected = {**EXPECTED, ("save", "ok"): EXPECTED["save", "ok"] + 10}
        eventually(lambda: counts_in(prometheus, telemetry.SCRAPED) == expected, f"Prometheus has {expected}")
        yield operations(state)
        process.communicate(timeout=60)


def test_scraped_numbers_are_those_of_the_local_store(prometheus, scraped):
    """Counts by outcome, durations and sizes in Prometheus are those of the spans of all processes: running, ended and killed."""
    assert numbers_in(prometheus, telemetry.SCRAPED) == numbers_of(scraped)


def test_exemplars_lead_to_spans(prometheus, scraped):
    """An exemplar in Prometheus names a span of the local store, with the operation of its series."""
    spans = {(span.trace_id, span.span_id): span.attributes[names.OPERATION] for span in scraped}
    exemplars = [
        (exemplar["labels"]["trace_id"], exemplar["labels"]["span_id"], series["seriesLabels"]["operation"])
        for series in prometheus.exemplars("checkpoint_operation_duration_seconds_bucket")
        for exemplar in series["exemplars"]
    ]
    ours = [(operation, spans[trace, span]) for trace, span, operation in exemplars if (trace, span) in spans]
    assert {operation for operation, _ in ours} == {"save", "restore"}
    assert [named for named, _ in ours] == [real for _, real in ours]


@pytest.mark.parametrize("query", re.findall(r"```promql\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL))
def test_query_of_the_docs_is_accepted(prometheus, query):
    """Prometheus accepts the queries of the documentation."""
    try:
        prometheus.query(query)
    except urllib.error.HTTPError as refusal:
        pytest.fail(refusal.read().decode())


def test_promtool_finds_nothing_wrong(prometheus, scraped):
    """The page follows the rules of Prometheus for names, help texts and types."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{prometheus.scraped}/metrics", timeout=30).read()
    result = subprocess.run(
        [program("promtool"), "check", "metrics"], input=page, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert (result.returncode, result.stdout.decode()) == (0, "")


def test_metrics_over_otlp(prometheus, run_agent, state):
    """Metrics pushed to the OTLP receiver of Prometheus have the same names and numbers as a scrape."""
    port = {"OTEL_EXPORTER_PROMETHEUS_PORT": free_port()}
    run_life(run_agent, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=prometheus.otlp, OTEL_SERVICE_NAME="pushed", **port)
    eventually(lambda: counts_in(prometheus, "pushed") == EXPECTED, f"Prometheus has {EXPECTED}")
    assert numbers_in(prometheus, "pushed") == numbers_of(operations(state))


def test_metrics_in_the_collector(collector, run_agent, state):
    """The last request to an OTel Collector contains the totals of all processes."""
    with collector.running():
        endpoint = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://127.0.0.1:{collector.http}/v1/metrics"}
        run_life(run_agent, OTEL_EXPORTER_PROMETHEUS_PORT=free_port(), **endpoint)
    last = json.loads(collector.metrics.read_text().splitlines()[-1])
    [points] = [
        each["sum"]["dataPoints"]
        for each in last["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
        if each["name"] == "checkpoint.operations"
    ]
    counts = Counter()
    for point in points:
        labels = {pair["key"]: pair["value"]["stringValue"] for pair in point["attributes"]}
        counts[labels["operation"], labels["outcome"]] += point["asDouble"]
    assert +counts == count_spans(operations(state)) == EXPECTED


def test_metrics_in_the_pushgateway(pushgateway, run_agent, state):
    """After a batch job a Pushgateway has the totals of all its processes, not only of the last one."""
    run_life(run_agent, CKPT_OBSERVE_METRICS_PUSHGATEWAY=pushgateway.url)
    page = urllib.request.urlopen(f"{pushgateway.url}/metrics", timeout=30).read().decode()
    counts = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "checkpoint_operations_total":
                counts[sample.labels["operation"], sample.labels["outcome"]] += sample.value
    assert +counts == count_spans(operations(state)) == EXPECTED
