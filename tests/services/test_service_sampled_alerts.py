"""Alerts do not depend on which traces are sampled: the same failures in programs with and without a sampler, in a real Prometheus."""

from __future__ import annotations

import pytest
import telemetry
from processes import eventually
from troubled_machine import Machine

pytestmark = pytest.mark.services

UNSAMPLED_PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
SAMPLERS = {
    "without": {},
    "always-off": {"OTEL_TRACES_SAMPLER": "always_off"},
    "ratio": {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"},
    "unsampled-parent": {"TRACEPARENT": UNSAMPLED_PARENT},
}
"""Variables of each program by the name of its task."""
JOBS = (telemetry.SCRAPED, "pushed")
EXPECTED = {"ok": 8.0, "error": 4.0, "interrupted": 1.0}
ALERTS = {"CheckpointFailureRatio", "CheckpointErrorBudgetBurn", "CheckpointInterrupted"}


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Programs with each sampler have failed and died. Their metrics are scraped, and pushed over OTLP."""
    with Machine(tmp_path_factory.mktemp("machine"), batch=True) as machine:
        otlp = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": machine.prometheus.otlp, "OTEL_METRIC_EXPORT_INTERVAL": "1000"}
        machine.start("keeper", OTEL_SERVICE_NAME="pushed", **otlp)
        machine.wait_until_done("keeper")
        for task, variables in SAMPLERS.items():
            machine.start("sampled", task, **variables)
        for task in SAMPLERS:
            machine.wait_until_done(task)
        for task in SAMPLERS:
            machine.go_on_after_failure(task, *JOBS)
            machine.resume(task)
        yield machine


@pytest.mark.parametrize("task", SAMPLERS)
@pytest.mark.parametrize("job", JOBS)
def test_counters_equal_the_operations(machine, job, task):
    """By scrape and by OTLP, every save is counted, including the one during which the process was killed."""
    query = f'sum by (outcome) (checkpoint_operations_total{{operation="save", task="{task}", job="{job}"}}) > 0'
    eventually(lambda: {labels[0]: value for labels, value in machine.prometheus.query(query).items()} == EXPECTED, f"{EXPECTED}")


@pytest.mark.parametrize("task", SAMPLERS)
@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_alert_fires(machine, job, task, alert):
    """The alerts on the ratio of failures, and on the death of the process, fire for every program."""
    eventually(lambda: machine.has_fired(alert, task=task, job=job), f"{alert} of {task} in {job} fires")


def test_traces_are_sampled(machine):
    """Control: the samplers are in effect. Only the program without a sampler is sure to have its traces recorded."""
    recorded = {task: machine.command("traces", "--task", task, "--tsv", codes=(0, 4)) for task in SAMPLERS}
    assert recorded["without"]
    assert not recorded["always-off"]
    assert not recorded["unsampled-parent"]
