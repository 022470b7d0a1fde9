"""One scenario, delivered by threads, by a companion and by a daemon: the same tree and the same numbers."""

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

pytestmark = pytest.mark.faults  # whole lives of several processes: half a minute together

SCENARIO = Path(__file__).parents[1] / "services" / "agent.py"
COUNTED = (
    metrics.OPERATIONS, metrics.TASKS, metrics.CORRUPTION, metrics.DELETED_CHECKPOINTS, metrics.DELIVERED_SPANS, metrics.REFUSED_SPANS, metrics.DROPPED_RECORDS, metrics.RECORDS,
    metrics.FAULTS, metrics.CONSECUTIVE_FAILURES, metrics.IN_FLIGHT, metrics.TASKS_IN_FLIGHT, metrics.PROCESSES,
)  # fmt: skip
MEASURED = (metrics.OPERATION_DURATION, metrics.PHASE_DURATION, metrics.SIZE, metrics.RATIO, metrics.THROUGHPUT, metrics.RESTORE_AGE)
SAME = (
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


def scenario(state, tmp_path, delivery):
    """Saves, a failure, a kill and a restore, in three processes, until all is delivered and nobody is left."""
    given = environ(state, delivery, CKPT_OBSERVE_EXPORTERS="local,prometheus", OTEL_EXPORTER_PROMETHEUS_PORT=str(free_port()))
    daemon = Daemon(given).wait_until_ready() if delivery == "daemon" else None
    try:
        for act in ("work", "resume"):
            subprocess.run(
                [sys.executable, str(SCENARIO), act, str(tmp_path / f"checkpoints-{delivery}"), "60"],
                env=given,
                check=True,
                timeout=TIMEOUT * 2,
            )
        until(lambda: is_empty(state), TIMEOUT)
        until(lambda: not companion_is_running(state), TIMEOUT)  # its last counters are in
        if daemon:
            daemon.stop()
    finally:
        end_companions(state)
        if daemon:
            clean_up(daemon.process)


def told(state):
    """The trees, ids and times aside (and with them the stored sizes, for a checkpoint has both in it)."""
    with TraceReader(state / FILENAME) as reader:
        traces = [reader.spans(trace.trace_id) for trace in reader.newest(100)]
    facts = sorted(
        (span.name, span.status, str({name: span.attributes.get(name) for name in SAME}), len(span.links))
        for spans in traces
        for span in spans
    )
    return sorted(map(outline, traces)), facts


def counted(state):
    """The numbers that do not depend on how fast it was."""
    found = {spec.name: series for spec, series in gather(state, "")[1]}
    numbers = {
        (spec.name, labels): getattr(point, "value", point) for spec in COUNTED for labels, point in found.get(spec.name, {}).items()
    }
    return numbers | {(spec.name, labels): sum(point.counts) for spec in MEASURED for labels, point in found.get(spec.name, {}).items()}


@pytest.fixture(scope="module")
def by_threads(tmp_path_factory):
    """What everybody is compared with."""
    directory = tmp_path_factory.mktemp("in-process")
    scenario(directory / "state", directory, "in-process")
    return directory / "state"


@pytest.mark.parametrize("delivery", ["companion", "daemon"])
def test_same_as_by_threads(by_threads, state, tmp_path, delivery):
    """Every span with its parent, outcome and links, and every count, whoever delivered them."""
    scenario(state, tmp_path, delivery)
    trees, facts = told(state)
    assert (trees, facts) == told(by_threads)
    assert counted(state) == counted(by_threads)
    assert len(trees) == 2
    outcomes = [values for name, values in counted(state).items() if name[0] == metrics.OPERATIONS.name and values]
    assert sum(outcomes) == 7, "three saves, one that failed, one that was killed, a restore and a save"
