"""What a reader chooses at the top of a dashboard. Nothing of a site is written into it: no uid, no job, no cluster."""

from __future__ import annotations

from typing import Any, Final

from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import MetricSpec
from ckpt_observe.semconv.values import OPERATIONS

DATASOURCE: Final = {"type": "prometheus", "uid": "${prometheus_datasource}"}
WINDOWS: Final = ("10m", "1h", "6h", "1d", "7d")
"""Checkpoints are minutes or hours apart: a percentile over Grafana's own few minutes is mostly of nothing."""


def datasource(kind: str) -> dict[str, Any]:
    """Which of the data sources of a kind, `prometheus`, `jaeger` or `tempo`; the first one, until another is chosen."""
    label = f"{kind.capitalize()} data source"
    return {"name": f"{kind}_datasource", "label": label, "type": "datasource", "query": kind, "refresh": 1, "current": {}, "hide": 0}


def job() -> dict[str, Any]:
    return _labels("job", metrics.BUILD)


def instance() -> dict[str, Any]:
    return _labels("instance", metrics.BUILD, '{job=~"$job"}')


def task() -> dict[str, Any]:
    """All means also none: operations outside of any task are not lost."""
    return _labels("task", metrics.OPERATIONS, '{job=~"$job", instance=~"$instance"}', every=".*")


def operation() -> dict[str, Any]:
    every = [
        {"text": "All", "value": "$__all", "selected": True},
        *({"text": name, "value": name, "selected": False} for name in OPERATIONS),
    ]
    choice = {"name": "operation", "label": "Operation", "type": "custom", "query": ",".join(OPERATIONS), "options": every}
    return {**choice, "current": every[0], "includeAll": True, "allValue": ".*", "multi": True, "hide": 0}


def window() -> dict[str, Any]:
    options = [{"text": each, "value": each, "selected": each == "1h"} for each in WINDOWS]
    choice = {"name": "window", "label": "Window", "type": "interval", "query": ",".join(WINDOWS), "options": options}
    return {**choice, "current": options[WINDOWS.index("1h")], "auto": False, "refresh": 2, "hide": 0}


def _labels(name: str, spec: MetricSpec, where: str = "", every: str = ".+") -> dict[str, Any]:
    """The values of a label."""
    query = f"label_values({spec.prometheus_name}{where}, {name})"
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "allValue": every,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "options": [],
        "hide": 0,
    }
