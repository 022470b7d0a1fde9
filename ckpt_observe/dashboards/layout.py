"""The layout of a dashboard: rows of panels, the variables at the top, and links to other dashboards and to traces.

Nothing specific to a site is written into a dashboard: data source, job, instance and task are chosen with variables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from ckpt_observe.dashboards.panels import DATASOURCE, Panel
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import MetricSpec
from ckpt_observe.semconv.values import OPERATIONS

COLUMNS: Final = 24
SCHEMA: Final = 42
TAG: Final = "checkpoints"
WINDOWS: Final = ("10m", "1h", "6h", "1d", "7d")
"""Choices for the variable `$window`. Checkpoints are minutes or hours apart, so Grafana's default of a few minutes is mostly empty."""


class Row(NamedTuple):
    """A titled row of panels, from left to right; it wraps to the next line when it is full.

    A row that is empty for most programs is `collapsed`: its queries run when it is opened. Grafana's classic JSON cannot hide a row
    without data: a row that repeats over an empty variable is shown once.
    """

    title: str
    panels: Sequence[Panel]
    collapsed: bool = False


class Dashboard(NamedTuple):
    """A dashboard. `span` is the initial time range, such as `24h`; `variables` are added to those that every dashboard has."""

    title: str
    description: str
    span: str
    variables: Sequence[dict[str, Any]]
    rows: Sequence[Row]


def as_json(dashboard: Dashboard, name: str, traces: str) -> dict[str, Any]:
    """Return the dashboard as Grafana's JSON. The uid is made from `name`, so that links stay valid; `traces` is `jaeger` or `tempo`."""
    variables = [
        datasource_variable("prometheus"),
        datasource_variable(traces),
        _label_variable("job", metrics.BUILD),
        _label_variable("instance", metrics.BUILD, '{job=~"$job"}'),
        *dashboard.variables,
    ]
    return {
        "uid": f"checkpoint-{name}",
        "title": f"Checkpoints / {dashboard.title}",
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": f"now-{dashboard.span}", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [_dashboard_links()],
        "templating": {"list": variables},
        "panels": _place_panels(dashboard.rows, traces),
    }


def _dashboard_links() -> dict[str, Any]:
    link = {
        "title": "Checkpoints",
        "type": "dashboards",
        "tags": [TAG],
        "asDropdown": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
    return {**link, "includeVars": True, "keepTime": True, "targetBlank": False}


def _place_panels(rows: Sequence[Row], traces: str) -> list[dict[str, Any]]:
    """Return the rows and panels with their places. The panels of a collapsed row are inside it, and take no space."""
    placed: list[dict[str, Any]] = []
    y, id = 0, 1
    for row in rows:
        panels, end = _place_row(row, id + 1, y + 1, traces)
        header = {"id": id, "type": "row", "title": row.title, "collapsed": row.collapsed, "panels": panels if row.collapsed else []}
        placed += [{**header, "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}}, *([] if row.collapsed else panels)]
        y, id = y + 1 if row.collapsed else end, id + 1 + len(panels)
    return placed


def _place_row(row: Row, id: int, y: int, traces: str) -> tuple[list[dict[str, Any]], int]:
    """Return the panels of a row that starts at `y`, with ids from `id` on, and where it ends."""
    panels: list[dict[str, Any]] = []
    x, height = 0, 0
    for panel in row.panels:
        if x + panel.width > COLUMNS:
            x, y, height = 0, y + height, 0
        placed = panel.as_json(id + len(panels), x, y)
        if panel.traces:
            placed["fieldConfig"]["defaults"]["links"] = [_trace_link(panel.traces, traces)]
        panels.append(placed)
        x, height = x + panel.width, max(height, panel.height)
    return panels, y + height


def _trace_link(tags: str, kind: str) -> dict[str, Any]:
    """Return a link that searches for traces with a tag (`name=value`). Jaeger also needs a service, which is the job of the series."""
    source = f"${{{kind}_datasource}}"
    query: dict[str, Any] = {"refId": "A", "datasource": {"type": kind, "uid": source}}
    if kind == "tempo":
        name, _, value = tags.partition("=")
        query |= {"queryType": "traceql", "query": f'{{ span.{name} = "{value}" }}'}
    else:
        query |= {"queryType": "search", "service": "${__field.labels.job}", "tags": tags}
    panes = {"checkpoints": {"datasource": source, "queries": [query], "range": {"from": "${__from}", "to": "${__to}"}}}
    quoted = re.sub(
        "%24%7B(.*?)%7D", r"${\1}", quote(json.dumps(panes, separators=(",", ":")), safe="")
    )  # keep Grafana's variables unquoted
    return {"title": "Traces", "url": f"/explore?schemaVersion=1&panes={quoted}", "targetBlank": True}


def datasource_variable(kind: str) -> dict[str, Any]:
    """Return a variable for the data source of a type: `prometheus`, `jaeger` or `tempo`. The first one is the default."""
    label = f"{kind.capitalize()} data source"
    return {"name": f"{kind}_datasource", "label": label, "type": "datasource", "query": kind, "refresh": 1, "current": {}, "hide": 0}


def task_variable() -> dict[str, Any]:
    """Return the variable for the task. "All" includes operations outside any task."""
    return _label_variable("task", metrics.OPERATIONS, '{job=~"$job", instance=~"$instance"}', all_value=".*")


def operation_variable() -> dict[str, Any]:
    options = [
        {"text": "All", "value": "$__all", "selected": True},
        *({"text": name, "value": name, "selected": False} for name in OPERATIONS),
    ]
    variable = {"name": "operation", "label": "Operation", "type": "custom", "query": ",".join(OPERATIONS), "options": options}
    return {**variable, "current": options[0], "includeAll": True, "allValue": ".*", "multi": True, "hide": 0}


def window_variable(default: str) -> dict[str, Any]:
    options = [{"text": each, "value": each, "selected": each == default} for each in WINDOWS]
    variable = {"name": "window", "label": "Window", "type": "interval", "query": ",".join(WINDOWS), "options": options}
    return {**variable, "current": options[WINDOWS.index(default)], "auto": False, "refresh": 2, "hide": 0}


def _label_variable(name: str, spec: MetricSpec, matchers: str = "", all_value: str = ".+") -> dict[str, Any]:
    """Return a variable with the values that a label has in a metric. `all_value` is the regular expression for "All"."""
    query = f"label_values({spec.prometheus_name}{matchers}, {name})"
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
        "allValue": all_value,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "options": [],
        "hide": 0,
    }
