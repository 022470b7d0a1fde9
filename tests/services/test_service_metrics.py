"""The numbers that Prometheus has are those that can be counted in the local store."""

from __future__ import annotations

import subprocess
import urllib.request
from collections import Counter

import pytest
import received
from processes import eventually, program
from prometheus_client.parser import text_string_to_metric_families

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.services

OPERATIONS = "sum by (operation, outcome) (checkpoint_operations_total) > 0"
LIFE = {("save", "ok"): 4, ("save", "error"): 1, ("save", "interrupted"): 1, ("restore", "ok"): 1}
"""What `work` and `resume` do."""


def operations(state):
    return [span for span in received.of_local_store(state) if names.OPERATION in span.attributes]


def counted(spans):
    return Counter((span.attributes[names.OPERATION], span.attributes[names.OUTCOME]) for span in spans)


def live(run_agent, **variables):
    for part in ("work", "resume"):
        run_agent(part, "prometheus,local", **variables)


@pytest.fixture
def scraped(prometheus, run_agent, agent_process, state):
    """Prometheus, and a process whose endpoint it scrapes after two others and a killed one have used it; what the local store has in the end."""
    port = {"OTEL_EXPORTER_PROMETHEUS_PORT": prometheus.scraped}
    live(run_agent, **port)
    with agent_process("steps", "prometheus,local", **port) as process:
        process.stdin.write(b"\n" * 10)
        process.stdin.flush()
        wanted = {**LIFE, ("save", "ok"): LIFE["save", "ok"] + 10}
        eventually(lambda: prometheus.query(OPERATIONS) == wanted, f"Prometheus has {wanted}")
        yield lambda: operations(state)
        process.communicate(timeout=60)


def test_scraped_numbers_are_those_of_the_local_store(prometheus, scraped):
    """L7: counts by outcome, durations and sizes in Prometheus are those of the spans of all processes, living, ended and killed."""
    spans = scraped()
    assert prometheus.query(OPERATIONS) == counted(spans)
    ended = [span for span in spans if span.attributes[names.OUTCOME] != "interrupted"]
    [seconds] = prometheus.query("sum(checkpoint_operation_duration_seconds_sum)").values()
    assert seconds == pytest.approx(sum(span.seconds for span in ended))
    [stored] = prometheus.query('sum(checkpoint_size_bytes_sum{kind="stored", operation="save"})').values()
    assert stored == sum(span.attributes.get(names.SIZE_STORED, 0) for span in spans if span.attributes[names.OPERATION] == "save")


def test_exemplars_lead_to_spans(prometheus, scraped):
    """L7: an exemplar in Prometheus names a span that the local store has, of the operation that its series is about."""
    spans = {(span.trace_id, span.span_id): span.attributes[names.OPERATION] for span in scraped()}
    series = eventually(lambda: prometheus.exemplars("checkpoint_operation_duration_seconds_bucket"), "Prometheus has exemplars")
    for each in series:
        for exemplar in each["exemplars"]:
            labels = exemplar["labels"]
            assert spans[labels["trace_id"], labels["span_id"]] == each["seriesLabels"]["operation"]


def test_promtool_finds_nothing_wrong(prometheus, scraped):
    """L7: the page follows Prometheus' own rules for names, help and types."""
    page = urllib.request.urlopen(f"http://127.0.0.1:{prometheus.scraped}/metrics", timeout=30).read()
    told = subprocess.run([program("promtool"), "check", "metrics"], input=page, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert (told.returncode, told.stdout.decode()) == (0, "")


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
