"""Panels with a row for each series: tables, rankings and timelines of states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any

from ckpt_observe.dashboards.panels import COUNT, LAST_VALUE, PLAIN, Panel, Steps, Texts, null_text, thresholds, value_texts
from ckpt_observe.dashboards.promql import PanelQuery


@dataclass(frozen=True)
class TableColumn:
    """A column of a table."""

    title: str
    query: PanelQuery
    unit: str
    steps: Steps = ()
    texts: Texts = field(default_factory=dict)

    def as_override(self) -> dict[str, Any]:
        texts = [*(value_texts(self.texts) if self.texts else []), null_text("–")]
        properties: list[dict[str, Any]] = [{"id": "unit", "value": self.unit}, {"id": "mappings", "value": texts}]
        if self.unit == COUNT:
            properties.append({"id": "decimals", "value": 0})
        if self.steps:
            properties.append({"id": "thresholds", "value": thresholds(self.steps)})
        if self.steps or self.texts:
            properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
        return {"matcher": {"id": "byName", "options": self.title}, "properties": properties}


def table(title: str, columns: Sequence[TableColumn], by: Sequence[str], description: str, *, empty: str, width: int = 24) -> Panel:
    """Return a table with a row per label set `by` and a column per query, sorted by the first column in descending order."""
    fields_of_values = [f"Value #{ref}" for ref in ascii_uppercase[: len(columns)]] if len(columns) > 1 else ["Value"]
    values = {name: column.title for name, column in zip(fields_of_values, columns, strict=True)}
    order = {name: index for index, name in enumerate([*by, *values])}
    titles = {**{name: name.capitalize() for name in by}, **values}
    organize = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": titles}
    transformations = {"transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]}
    fields = {"custom": {"align": "auto", "minWidth": 80}}
    options = {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": columns[0].title, "desc": True}]}
    rows = [column.query.as_column() for column in columns]
    overrides = [*(_label_column(name.capitalize()) for name in by), *(column.as_override() for column in columns)]
    return Panel("table", title, rows, "none", description, empty, width, 8, fields, options, transformations, overrides)


def _label_column(label: str) -> dict[str, Any]:
    properties = [{"id": "custom.filterable", "value": True}, {"id": "custom.width", "value": 180 if label == "Task" else 120}]
    return {"matcher": {"id": "byName", "options": label}, "properties": properties}


def ranking(title: str, query: PanelQuery, unit: str, description: str, *, empty: str) -> Panel:
    """Return a panel with one horizontal bar for each series of the query."""
    fields = {"color": {"mode": "continuous-BlPu"}, "thresholds": thresholds(PLAIN), "min": 0}
    options = {"displayMode": "gradient", "orientation": "horizontal", "showUnfilled": True, "reduceOptions": LAST_VALUE}
    return Panel("bargauge", title, [query.as_instant()], unit, description, empty, 12, 8, fields, options)


def states(title: str, query: PanelQuery, texts: Texts, description: str, *, empty: str, traces: str) -> Panel:
    """Return a timeline with the state of each series. The texts are in the legend: in short segments Grafana would clip them.

    Its colour mode is not `thresholds`: with that, Grafana would not show the texts.
    """
    fields = {
        "color": {"mode": "fixed", "fixedColor": "text"},
        "custom": {"fillOpacity": 80, "lineWidth": 0},
        "mappings": value_texts(texts),
    }
    options = {
        "mergeValues": True,
        "showValue": "never",
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return Panel("state-timeline", title, [query], "none", description, empty, 24, 9, fields, options, traces=traces)
