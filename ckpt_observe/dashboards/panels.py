"""The kinds of panels. Each has a title, a sentence that says what to do, a unit, and words for when there is nothing to show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any, Final

from ckpt_observe.dashboards.queries import Query
from ckpt_observe.dashboards.variables import DATASOURCE

STEP: Final = "1m"
"""The shortest step of bars: with scrapes every 20 s or more often, `$__rate_interval` is then the step and one scrape."""

COUNT: Final = "short"
"""The unit of things that are counted. Prometheus extrapolates: one event may come back as 1.07, and is shown as 1."""

Steps = Sequence[tuple[float | None, str]]
Texts = dict[str, tuple[str, str]]
"""A value, and the text and colour that it is shown as."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel. `fields` and `options` are Grafana's own, by panel type."""

    type: str
    title: str
    description: str
    unit: str
    empty: str
    queries: Sequence[Query]
    width: int
    height: int
    fields: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    traces: str = ""
    """The tags of the traces that a link leads to, as Jaeger writes them; a value may be a label of the series."""

    def as_json(self, id: int, x: int, y: int) -> dict[str, Any]:
        whole = {"decimals": 0} if self.unit == COUNT else {}
        defaults = {"unit": self.unit, "noValue": self.empty, **whole, **self.fields}
        return {
            "id": id,
            "type": self.type,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [_target(query, ref) for query, ref in zip(self.queries, ascii_uppercase, strict=False)],
            "fieldConfig": {"defaults": defaults, "overrides": self.more.get("overrides", [])},
            "options": self.options,
            **{key: value for key, value in self.more.items() if key != "overrides"},
        }


def _target(query: Query, ref: str) -> dict[str, Any]:
    shown = {"legendFormat": query.legend} if query.legend else {}
    once = query.shape in ("instant", "table")
    form = {"table": "table", "heatmap": "heatmap"}.get(query.shape, "time_series")
    target = {"refId": ref, "datasource": DATASOURCE, "editorMode": "code", "expr": query.expr, "format": form, **shown}
    return {**target, "instant": once, "range": not once, **({"exemplar": True} if query.exemplar else {})}


def thresholds(steps: Steps) -> dict[str, Any]:
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps]}


GREEN: Final[Steps] = ((None, "green"),)
PLAIN: Final[Steps] = ((None, "text"),)


def above(warning: float, critical: float) -> Steps:
    """The more, the worse."""
    return ((None, "green"), (warning, "orange"), (critical, "red"))


def below(critical: float, warning: float) -> Steps:
    """The less, the worse."""
    return ((None, "red"), (critical, "orange"), (warning, "green"))


def stat(title: str, query: Query, unit: str, description: str, *, empty: str, steps: Steps = PLAIN, width: int = 4) -> Panel:
    """One number."""
    shown = {"color": {"mode": "thresholds"}, "thresholds": thresholds(steps)}
    options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "none", "textMode": "value"}
    return Panel(
        type="stat", title=title, description=description, unit=unit, empty=empty, queries=[query.now()], width=width, height=4, fields=shown, options=options
    )


def lines(
    title: str, queries: Sequence[Query], unit: str, description: str, *, empty: str, width: int = 12, steps: Steps = (), least: float | None = 0, traces: str = "", **drawn: Any
) -> Panel:
    """Lines over time. `least` is where the axis begins at the latest."""
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "auto", "spanNulls": False, **drawn}
    custom |= {"thresholdsStyle": {"mode": "dashed"}} if steps else {}
    shown = {"color": {"mode": "palette-classic"}, "custom": custom, **({"thresholds": thresholds(steps)} if steps else {}), **({} if least is None else {"min": least})}
    options = {"legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return Panel(
        type="timeseries", title=title, description=description, unit=unit, empty=empty, queries=queries, width=width, height=8, fields=shown, options=options, traces=traces
    )


def bars(title: str, queries: Sequence[Query], unit: str, description: str, *, empty: str, width: int = 12, least: float | None = 0, traces: str = "") -> Panel:
    """How many in each step, stacked."""
    style: dict[str, Any] = {"drawStyle": "bars", "fillOpacity": 80, "showPoints": "never", "stacking": {"mode": "normal", "group": "A"}}
    made = lines(title, queries, unit, description, empty=empty, width=width, least=least, traces=traces, **style)
    made.options["legend"] |= {"calcs": ["sum"]}
    made.more["interval"] = STEP
    return made


def stacked(title: str, queries: Sequence[Query], unit: str, description: str, *, empty: str, width: int = 12) -> Panel:
    """Parts of a whole over time."""
    return lines(title, queries, unit, description, empty=empty, width=width, fillOpacity=60, stacking={"mode": "normal", "group": "A"}, lineInterpolation="stepAfter")


def heatmap(title: str, query: Query, unit: str, description: str, *, empty: str, width: int = 12) -> Panel:
    """A histogram over time."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange", "reverse": False, "scale": "exponential"},
        "exemplars": {"color": "rgba(120,120,255,0.9)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "unit": unit, "reverse": False},
    }
    more = {"interval": STEP}
    return Panel(type="heatmap", title=title, description=description, unit=unit, empty=empty, queries=[query], width=width, height=8, options=options, more=more)


def states(title: str, query: Query, texts: Texts, description: str, *, empty: str, width: int = 24, height: int = 6, traces: str = "") -> Panel:
    """What each one was, over time. The colour mode is not `thresholds`: with that, Grafana does not show the texts."""
    custom = {"fillOpacity": 80, "lineWidth": 0}
    shown = {"color": {"mode": "fixed", "fixedColor": "text"}, "custom": custom, "mappings": mappings(texts)}
    options = {"mergeValues": True, "showValue": "auto", "alignValue": "left", "rowHeight": 0.8, "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}}
    options["tooltip"] = {"mode": "single", "sort": "none"}
    return Panel(
        type="state-timeline", title=title, description=description, unit="none", empty=empty, queries=[query], width=width, height=height, fields=shown, options=options, traces=traces
    )


def ranking(title: str, query: Query, unit: str, description: str, *, empty: str, width: int = 12) -> Panel:
    """The largest ones, as bars."""
    shown = {"color": {"mode": "continuous-BlPu"}, "thresholds": thresholds(GREEN), "min": 0}
    options = {"displayMode": "gradient", "orientation": "horizontal", "showUnfilled": True, "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    return Panel(
        type="bargauge", title=title, description=description, unit=unit, empty=empty, queries=[query.now()], width=width, height=8, fields=shown, options=options
    )


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, its question, its unit, and from where on it is coloured."""

    title: str
    query: Query
    unit: str
    steps: Steps = ()
    texts: Texts = field(default_factory=dict)


def table(title: str, columns: Sequence[Column], by: Sequence[str], description: str, *, empty: str, width: int = 24, height: int = 8) -> Panel:
    """A row for each of `by`, a column for each question."""
    values = {f"Value #{ref}": column.title for column, ref in zip(columns, ascii_uppercase, strict=False)}
    order = {name: place for place, name in enumerate([*by, *values])}
    organize = {"excludeByName": {"Time": True, "Value": True}, "indexByName": order, "renameByName": {**{name: name.capitalize() for name in by}, **values}}
    transformations = [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]
    more = {"transformations": transformations, "overrides": [_column(column) for column in columns]}
    return Panel(
        type="table",
        title=title,
        description=description,
        unit="none",
        empty=empty,
        queries=[column.query.row() for column in columns],
        width=width,
        height=height,
        fields={"custom": {"align": "auto", "filterable": True}},
        options={"showHeader": True, "cellHeight": "sm"},
        more=more,
    )


def _column(column: Column) -> dict[str, Any]:
    properties: list[dict[str, Any]] = [{"id": "unit", "value": column.unit}]
    if column.texts:
        properties.append({"id": "mappings", "value": mappings(column.texts)})
    if column.steps:
        properties.append({"id": "thresholds", "value": thresholds(column.steps)})
    if column.steps or column.texts:
        properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
    return {"matcher": {"id": "byName", "options": column.title}, "properties": properties}


def mappings(texts: Texts) -> list[dict[str, Any]]:
    """Words for values: a colour alone is not read by everybody."""
    return [{"type": "value", "options": {value: {"text": text, "color": colour, "index": place} for place, (value, (text, colour)) in enumerate(texts.items())}}]
