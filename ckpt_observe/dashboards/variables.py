"""What a reader chooses at the top of a board. Nothing of a site is written into it: no uid, no job, no cluster."""

from __future__ import annotations

from typing import Any, Final

from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import MetricSpec
from ckpt_observe.semconv.values import OPERATIONS

DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
WINDOWS: Final = ("10m", "1h", "6h", "1d", "7d")
"""Checkpoints are minutes or hours apart: a percentile over Grafana's own few minutes is mostly of nothing."""


def datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data Source", "type": "datasource", "query": "prometheus", "refresh": 1, "current": {}, "hide": 0}


def traces(kind: str) -> dict[str, Any]:
    return {"name": "traces", "label": "Traces", "type": "datasource", "query": kind, "refresh": 1, "current": {}, "hide": 0}


def job() -> dict[str, Any]:
    return _labels("job", "Job", metrics.BUILD, "job", "")


def instance() -> dict[str, Any]:
    return _labels("instance", "Instance", metrics.BUILD, "instance", 'job=~"$job"')


def task() -> dict[str, Any]:
    return _labels("task", "Task", metrics.OPERATIONS, "task", 'job=~"$job", instance=~"$instance"')


def operation() -> dict[str, Any]:
    every = [{"text": "All", "value": "$__all", "selected": True}, *({"text": name, "value": name, "selected": False} for name in OPERATIONS)]
    choice = {"name": "operation", "label": "Operation", "type": "custom", "query": ",".join(OPERATIONS), "options": every}
    return {**choice, "current": every[0], "includeAll": True, "allValue": ".*", "multi": True, "hide": 0}


def window() -> dict[str, Any]:
    options = [{"text": each, "value": each, "selected": each == "1h"} for each in WINDOWS]
    choice = {"name": "window", "label": "Window", "type": "interval", "query": ",".join(WINDOWS), "options": options}
    return {**choice, "current": options[WINDOWS.index("1h")], "auto": False, "refresh": 2, "hide": 0}


def _labels(name: str, label: str, spec: MetricSpec, of: str, where: str) -> dict[str, Any]:
    """The values of a label. All of them means any, also none: a series without the label is not lost."""
    query = f"label_values({spec.prometheus_name}{f'{{{where}}}' if where else ''}, {of})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "options": [],
        "hide": 0,
    }
