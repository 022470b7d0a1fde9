"""Where panels stand, and what every dashboard has: variables, links to the others and to traces."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from ckpt_observe.dashboards import variables
from ckpt_observe.dashboards.panels import Panel

COLUMNS: Final = 24
SCHEMA: Final = 42
TAG: Final = "checkpoints"


class Row(NamedTuple):
    """Panels from left to right, in as many lines as they need."""

    title: str
    panels: Sequence[Panel]


class Dashboard(NamedTuple):
    """One dashboard, in reading order. `span` is how far back it looks at first."""

    title: str
    description: str
    span: str
    variables: Sequence[dict[str, Any]]
    rows: Sequence[Row]


def as_json(dashboard: Dashboard, name: str, traces: str) -> dict[str, Any]:
    """The dashboard as Grafana reads it. Its uid comes from its name, so that links to it stay."""
    chosen = [variables.datasource("prometheus"), variables.datasource(traces), variables.job(), variables.instance(), *dashboard.variables]
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
        "links": [_others()],
        "templating": {"list": chosen},
        "panels": _placed(dashboard.rows, traces),
    }


def _others() -> dict[str, Any]:
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


def _placed(rows: Sequence[Row], traces: str) -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    y = 0
    for row in rows:
        head = {"id": len(placed) + 1, "type": "row", "title": row.title, "collapsed": False, "panels": []}
        placed.append({**head, "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}})
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            made = panel.as_json(len(placed) + 1, x, y)
            if panel.traces:
                made["fieldConfig"]["defaults"]["links"] = [_to_traces(panel.traces, traces)]
            placed.append(made)
            x, height = x + panel.width, max(height, panel.height)
        y += height
    return placed


def _to_traces(tags: str, kind: str) -> dict[str, Any]:
    """A search for the traces behind a series. Jaeger wants a service: the job of the series, where jobs are named as services."""
    source = f"${{{kind}_datasource}}"
    query: dict[str, Any] = {"refId": "A", "datasource": {"type": kind, "uid": source}}
    if kind == "tempo":
        name, _, value = tags.partition("=")
        query |= {"queryType": "traceql", "query": f'{{ span.{name} = "{value}" }}'}
    else:
        query |= {"queryType": "search", "service": "${__field.labels.job}", "tags": tags}
    panes = {"checkpoints": {"datasource": source, "queries": [query], "range": {"from": "${__from}", "to": "${__to}"}}}
    quoted = re.sub("%24%7B(.*?)%7D", r"${\1}", quote(json.dumps(panes, separators=(",", ":")), safe=""))  # variables stay as they are
    return {"title": "Traces", "url": f"/explore?schemaVersion=1&panes={quoted}", "targetBlank": True}
