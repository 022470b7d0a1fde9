"""In-process delivery, companion and daemon deliver the same spans and the same metrics for the same scenario."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ckpt_observe.metricstore.snapshot import gather
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import metrics
from ckpt_observe.testing.spans import outline
from ckpt_observe.tracestore import FILENAME, TraceReader
from tests.delivery.conftest import until
from tests.delivery.rig import TIMEOUT, Daemon, clean_up, companion_is_running, end_companions, environ, is_empty
from tests.services.processes import free_port

pytestmark = pytest.mark.faults  # starts several processes; about half a minute in total

SCENARIO = Path(__file__).parents[1] / "services" / "agent.py"
COUNTER_METRICS = (
    metrics.OPERATIONS, metrics.TASKS, metrics.CORRUPTION, metrics.DELETED_CHECKPOINTS, metrics.DELIVERED_SPANS, metrics.REFUSED_SPANS, metrics.DROPPED_RECORDS, metrics.RECORDS,
    metrics.FAULTS, metrics.CONSECUTIVE_FAILURES, metrics.IN_FLIGHT, metrics.TASKS_IN_FLIGHT, metrics.PROCESSES,
)  # fmt: skip
HISTOGRAM_METRICS = (
    metrics.OPERATION_DURATION,
    metrics.PHASE_DURATION,
    metrics.SIZE,
    metrics.RATIO,
    metrics.THROUGHPUT,
    metrics.RESTORE_AGE,
)
COMPARED_ATTRIBUTES = (
    names.OUTCOME,
    names.STEP,
    names.TASK_NAME,
    names.ERROR_CLASS,
    names.ERROR_CODE,
    names.ERROR_PHASE,
    names.STEPS_SINCE,
    names.SIZE_STATE,
    names.SIZE_SERIALIZED,
    names.PHASE,
)


def run_scenario(state, tmp_path, delivery):
    """Run saves, a failure, a kill and a restore in three processes, until everything is delivered and all processes ended."""
    variables = environ(state, delivery, CKPT_OBSERVE_EXPORTERS="local,prometheus", OTEL_EXPORTER_PROMETHEUS_PORT=str(free_port()))
    daemon = Daemon(variables).wait_until_ready() if delivery == "daemon" else None
    try:
        for act in ("work", "resume"):
            subprocess.run(
                [sys.executable, str(SCENARIO), act, str(tmp_path / f"checkpoints-{delivery}"), "60"],
                env=variables,
                check=True,
                timeout=TIMEOUT * 2,
            )
        until(lambda: is_empty(state), TIMEOUT)
        until(lambda: not companion_is_running(state), TIMEOUT)  # it has written its last counters
        if daemon:
            daemon.stop()
    finally:
        end_companions(state)
        if daemon:
            clean_up(daemon.process)


def trees_and_facts(state):
    """Return the spans without ids and times, and without stored sizes, because a checkpoint contains ids and times."""
    with TraceReader(state / FILENAME) as reader:
        traces = [reader.spans(trace.trace_id) for trace in reader.newest(100)]
    facts = sorted(
        (span.name, span.status, str({name: span.attributes.get(name) for name in COMPARED_ATTRIBUTES}), len(span.links))
        for spans in traces
        for span in spans
    )
    return sorted(map(outline, traces)), facts


def metric_values(state):
    """Return the numbers that do not depend on durations."""
    series_by_name = {spec.name: series for spec, series in gather(state, "")[1]}
    numbers = {
        (spec.name, labels): getattr(point, "value", point)
        for spec in COUNTER_METRICS
        for labels, point in series_by_name.get(spec.name, {}).items()
    }
    return numbers | {
        (spec.name, labels): sum(point.counts) for spec in HISTOGRAM_METRICS for labels, point in series_by_name.get(spec.name, {}).items()
    }


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    """The state directory of in-process delivery, with which the others are compared."""
    directory = tmp_path_factory.mktemp("in-process")
    run_scenario(directory / "state", directory, "in-process")
    return directory / "state"


@pytest.mark.parametrize("delivery", ["companion", "daemon"])
def test_same_as_in_process(in_process, state, tmp_path, delivery):
    """Every span has the same parent, outcome and links, and every metric the same value."""
    run_scenario(state, tmp_path, delivery)
    trees, facts = trees_and_facts(state)
    assert (trees, facts) == trees_and_facts(in_process)
    assert metric_values(state) == metric_values(in_process)
    assert len(trees) == 2
    outcomes = [values for name, values in metric_values(state).items() if name[0] == metrics.OPERATIONS.name and values]
    assert sum(outcomes) == 7, "three saves, one that failed, one that was killed, a restore and another save"
