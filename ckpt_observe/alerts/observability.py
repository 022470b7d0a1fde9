"""Alerts on ckpt_observe itself: whether it delivers, drops records or is missing, and a watchdog that shows that alerts arrive."""

from __future__ import annotations

from typing import Final

from ckpt_observe.alerts.alert import CRITICAL, NONE, VALUE, WARNING, Alert, series
from ckpt_observe.alerts.site import HOUR, MINUTE, Site
from ckpt_observe.semconv import metrics

_PATIENCE: Final = 15 * MINUTE
"""Failed deliveries are retried at least once a minute, so 15 minutes are many attempts."""

_DASHBOARD: Final = "observability"

WATCHDOG: Final = "CheckpointWatchdog"


def alerts(site: Site) -> list[Alert]:
    """Return all alerts of this module."""
    return [not_delivering(), dropped_records(), *([] if site.batch else [metrics_vanished(site), metrics_absent(site)]), watchdog()]


def not_delivering() -> Alert:
    retries, deliveries = series(metrics.RETRIES, over=_PATIENCE), series(metrics.DELIVERED_SPANS, over=_PATIENCE)
    return Alert(
        "CkptObserveNotDelivering",
        WARNING,
        f"increase({retries}) > 0\nunless increase({deliveries}) > 0",
        "An exporter cannot deliver its spans.",
        "Nothing is delivered from {{ $labels.instance }} to {{ $labels.exporter }}. Records are kept on disk up to the disk limit.",
        hold=_PATIENCE,
        dashboard=_DASHBOARD,
        links_by=("job", "instance"),
    )


def dropped_records() -> Alert:
    dropped, refused = series(metrics.DROPPED_RECORDS, over=HOUR), series(metrics.REFUSED_SPANS, over=HOUR)
    return Alert(
        "CkptObserveDropped",
        WARNING,
        f"increase({dropped}) > 0\nor increase({refused}) > 0",
        "Records of checkpoint operations were dropped.",
        f"About {VALUE} records were dropped on {{{{ $labels.instance }}}} ({{{{ $labels.reason }}}}{{{{ $labels.exporter }}}}).",
        dashboard=_DASHBOARD,
        links_by=("job", "instance"),
    )


def metrics_vanished(site: Site) -> Alert:
    """Ignores `job`: a process that pushes for all processes of a machine sets its own job name, and another may take over from it."""
    running = metrics.TASKS_IN_FLIGHT
    return Alert(
        "CheckpointMetricsVanished",
        CRITICAL,
        f"last_over_time({series(running, over=site.window)}) > 0\nunless ignoring (job) {series(running)}",
        "The metrics of a machine disappeared while a task was running on it.",
        f"When {{{{ $labels.instance }}}} last reported, {VALUE} runs of task {{{{ $labels.task }}}} were in progress.",
        hold=site.settle_time,
    )


def metrics_absent(site: Site) -> Alert:
    return Alert(
        "CheckpointMetricsAbsent",
        WARNING,
        f"absent({series(metrics.BUILD)})",
        "Prometheus receives no checkpoint metrics.",
        "Prometheus gets no metrics from ckpt_observe, so the alerts do not notice what happens to checkpoints.",
        hold=site.interval / 2,
        dashboard=_DASHBOARD,
        links_by=(),
    )


def watchdog() -> Alert:
    return Alert(
        WATCHDOG,
        NONE,
        "vector(1)",
        "Alerts are being delivered.",
        "This alert always fires. If its receiver no longer gets it, Prometheus or Alertmanager is down.",
        dashboard=_DASHBOARD,
        links_by=(),
    )
