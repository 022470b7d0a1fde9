"""Alerts on the observation itself: does it deliver, does it lose, is it there; and that alerts arrive at all."""

from __future__ import annotations

from typing import Final

from ckpt_observe.alerts.alert import CRITICAL, NONE, VALUE, WARNING, Alert
from ckpt_observe.alerts.plan import HOUR, MINUTE, Plan
from ckpt_observe.alerts.promql import series
from ckpt_observe.semconv import metrics

_PATIENCE: Final = 15 * MINUTE
"""An exporter that fails is tried again within a minute: a quarter of an hour is many tries."""

WATCHDOG: Final = "CheckpointWatchdog"


def alerts(plan: Plan) -> list[Alert]:
    return [not_delivering(), dropped(), *([] if plan.batch else [vanished(plan), absent(plan)]), watchdog()]


def not_delivering() -> Alert:
    tried, delivered = series(metrics.RETRIES, over=_PATIENCE), series(metrics.DELIVERED_SPANS, over=_PATIENCE)
    return Alert(
        "CkptObserveNotDelivering",
        WARNING,
        f"increase({tried}) > 0\nunless increase({delivered}) > 0",
        "A destination of traces takes nothing.",
        "Nothing has been delivered from {{ $labels.instance }} to {{ $labels.exporter }}; it waits on disk, up to its limit.",
        hold=_PATIENCE,
    )


def dropped() -> Alert:
    lost, refused = series(metrics.DROPPED_RECORDS, over=HOUR), series(metrics.REFUSED_SPANS, over=HOUR)
    return Alert(
        "CkptObserveDropped",
        WARNING,
        f"increase({lost}) > 0\nor increase({refused}) > 0",
        "Records of checkpoint operations were lost.",
        f"About {VALUE} records on {{{{ $labels.instance }}}} were lost ({{{{ $labels.reason }}}}{{{{ $labels.exporter }}}}).",
    )


def vanished(plan: Plan) -> Alert:
    """Whoever pushes for all processes of a host gives the job its own name: another that goes on for it is the same host."""
    running = metrics.TASKS_IN_FLIGHT
    return Alert(
        "CheckpointMetricsVanished",
        CRITICAL,
        f"last_over_time({series(running, over=plan.window)}) > 0\nunless ignoring (job) {series(running)}",
        "A task was running when its host fell silent.",
        f"The last that was heard of {{{{ $labels.instance }}}} is that {VALUE} runs of task {{{{ $labels.task }}}} were going on.",
        hold=plan.settle,
    )


def absent(plan: Plan) -> Alert:
    return Alert(
        "CheckpointMetricsAbsent",
        WARNING,
        f"absent({series(metrics.BUILD)})",
        "No checkpoint metrics arrive from anywhere.",
        "Prometheus has no series of ckpt_observe at all: no alert on checkpoints can fire.",
        hold=plan.interval / 2,
    )


def watchdog() -> Alert:
    return Alert(
        WATCHDOG,
        NONE,
        "vector(1)",
        "Alerts arrive.",
        "This alert always fires. When its receiver stops getting it, Prometheus or Alertmanager is down.",
    )
