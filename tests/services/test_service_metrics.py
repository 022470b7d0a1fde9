"""The numbers that Prometheus has are those that can be counted in the local store."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
import received
import telemetry
from processes import eventually, free_port, program
from prometheus_client.parser import text_string_to_metric_families

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.services

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"

LIFE = {("save", "ok"): 4, ("save", "error"): 1, ("save", "interrupted"): 1, ("restore", "ok"): 1}
"""What `work` and `resume` do."""


def live(run_agent, **variables):
    for part in ("work", "resume"):
        run_agent(part, "prometheus,local", **variables)


def counted(spans):
    return Counter((span.attributes[names.OPERATION], span.attributes[names.OUTCOME]) for span in spans)


def operations(state):
    return [span for span in received.of_local_store(state) if names.OPERATION in span.attributes]


def numbers_of(spans):
    """Operations by outcome, their seconds, and the bytes that were stored."""
    saves = [span for span in spans if span.attributes[names.OPERATION] == "save"]
    return (
        counted(spans),
        pytest.approx(sum(span.seconds for span in spans)),
        sum(span.attributes.get(names.SIZE_STORED, 0) for span in saves),
    )


def numbers_in(prometheus, job):
    """The same by its queries."""
    [seconds] = prometheus.query(f'sum(checkpoint_operation_duration_seconds_sum{{job="{job}"}})').values()
    [stored] = prometheus.query(f'sum(checkpoint_size_bytes_sum{{job="{job}", kind="stored", operation="save"}})').values()
    return counts_in(prometheus, job), seconds, stored


def counts_in(prometheus, job):
    return prometheus.query(f'sum by (operation, outcome) (checkpoint_operations_total{{job="{job}"}}) > 0')


@pytest.fixture
def scraped(prometheus, run_agent, agent_process, state):
    """A process whose endpoint Prometheus has scraped, after two others used it and one was killed; gives the operations that the local store has."""
    port = {"OTEL_EXPORTER_PROMETHEUS_PORT": prometheus.scraped}
    live(run_agent, **port)
    with agent_process("steps", "prometheus,local", **port) as process:
        process.stdin.write(b"\n" * 10)
        process.stdin.flush()
        wanted = {**LIFE, ("save", "ok"): LIFE["save", "ok"] + 10}
        eventually(lambda: counts_in(prometheus, telemetry.SCRAPED) == wanted, f"Prometheus has {wanted}")
        yield operations(state)
        process.communicate(timeout=60)


def test_scraped_numbers_are_those_of_the_local_store(prometheus, scraped):
    """L7: counts by outcome, durations and sizes in Prometheus are those of the spans of all processes, living, ended and killed."""
    assert numbers_in(prometheus, telemetry.SCRAPED) == numbers_of(scraped)


def test_exemplars_lead_to_spans(prometheus, scraped):
    """L7: an exemplar in Prometheus names a span that the local store has, of the operation that its series is about."""
    spans = {(span.trace_id, span.span_id): span.attributes[names.OPERATION] for span in scraped}
    found = [
        (exemplar["labels"]["trace_id"], exemplar["labels"]["span_id"], series["seriesLabels"]["operation"])
        for series in prometheus.exemplars("checkpoint_operation_duration_seconds_bucket")
        for exemplar in series["exemplars"]
    ]
    ours = [(operation, spans[trace, span]) for trace, span, operation in found if (trace, span) in spans]
    assert {operation for operation, _ in ours} == {"save", "restore"}
    assert [named for named, _ in ours] == [real for _, real in ours]


@pytest.mark.parametrize("query", re.findall(r"```promql\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL))
def test_query_of_the_docs_is_understood(prometheus, query):
    """L7: what the docs tell to ask, Prometheus can answer."""
    try:
        prometheus.query(query)
    except urllib.error.HTTPError as refusal:
        pytest.fail(refusal.read().decode())


def test_promtool_finds_nothing_wrong(prometheus, scraped):
    """L7: the page follows Prometheus' own rules for names, help and types."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{prometheus.scraped}/metrics", timeout=30).read()
    told = subprocess.run(
        [program("promtool"), "check", "metrics"], input=page, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert (told.returncode, told.stdout.decode()) == (0, "")


def test_numbers_by_otlp_are_those_of_the_local_store(prometheus, run_agent, state):
    """L7: the same table pushed into Prometheus' OTLP receiver gives the same names and numbers as a scrape."""
    port = {"OTEL_EXPORTER_PROMETHEUS_PORT": free_port()}
    live(run_agent, OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=prometheus.otlp, OTEL_SERVICE_NAME="pushed", **port)
    eventually(lambda: counts_in(prometheus, "pushed") == LIFE, f"Prometheus has {LIFE}")
    assert numbers_in(prometheus, "pushed") == numbers_of(operations(state))


def test_collector_has_the_numbers_of_the_local_store(collector, run_agent, state):
    """L7: the last that a Collector got of a run is the sum of all its processes."""
    with collector.running():
        endpoint = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"http://127.0.0.1:{collector.http}/v1/metrics"}
        live(run_agent, OTEL_EXPORTER_PROMETHEUS_PORT=free_port(), **endpoint)
    last = json.loads(collector.metrics.read_text().splitlines()[-1])
    [points] = [
        each["sum"]["dataPoints"]
        for each in last["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
        if each["name"] == "checkpoint.operations"
    ]
    found = Counter()
    for point in points:
        labels = {pair["key"]: pair["value"]["stringValue"] for pair in point["attributes"]}
        found[labels["operation"], labels["outcome"]] += point["asDouble"]
    assert +found == counted(operations(state)) == LIFE


def test_pushed_numbers_are_those_of_the_local_store(pushgateway, run_agent, state):
    """L7: a Pushgateway has, after a batch job's end, the sum of all its processes, and not only the last one's."""
    live(run_agent, CKPT_OBSERVE_METRICS_PUSHGATEWAY=pushgateway.url)
    page = urllib.request.urlopen(f"{pushgateway.url}/metrics", timeout=30).read().decode()
    found = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == "checkpoint_operations_total":
                found[sample.labels["operation"], sample.labels["outcome"]] += sample.value
    assert +found == counted(operations(state)) == LIFE
