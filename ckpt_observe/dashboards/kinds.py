"""The kinds of panels that the dashboards are made of, each with how Grafana shall draw it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any, Final

from ckpt_observe.dashboards.panels import COUNT, PLAIN, Panel, Steps, Texts, coloured, mappings, nothing, thresholds
from ckpt_observe.dashboards.queries import Query

STEP: Final = "1m"
"""The shortest step of bars: with scrapes every 20 s or more often, `$__rate_interval` is then the step and one scrape."""

_WIDE: Final = 12
_LAST: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_STACK: Final = {"stacking": {"mode": "normal", "group": "A"}}
OUTCOMES: Final = {"ok": "green", "error": "red", "interrupted": "purple", "cancelled": "yellow", "skipped": "blue"}
FAILURES: Final = {name: colour for name, colour in OUTCOMES.items() if name != "ok"}
NONE: Final[Mapping[str, str]] = {}
_HEAT: Final = {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange", "reverse": False}


def stat(title: str, query: Query, unit: str, description: str, *, empty: str, steps: Steps = PLAIN, width: int = 4) -> Panel:
    """One number."""
    fields = {"color": {"mode": "thresholds"}, "thresholds": thresholds(steps), "mappings": [nothing(empty)]}
    options = {"reduceOptions": _LAST, "colorMode": "value", "graphMode": "none", "textMode": "value"}
    return Panel("stat", title, [query.now()], unit, description, empty, width, 4, fields, options)


def lines(
    title: str,
    queries: Sequence[Query],
    unit: str,
    description: str,
    *,
    empty: str,
    width: int = 12,
    steps: Steps = (),
    least: float | None = 0,
    logarithmic: bool = False,
) -> Panel:
    """Lines over time. The axis begins at `least` or below; a logarithmic one is for what is of several magnitudes."""
    style: dict[str, Any] = {"thresholdsStyle": {"mode": "dashed"}} if steps else {}
    if logarithmic:
        style, least = {"scaleDistribution": {"type": "log", "log": 10}, "fillOpacity": 0}, None
    drawn = _drawn(style, least, width, ("lastNotNull",), {"thresholds": thresholds(steps)} if steps else {})
    return Panel("timeseries", title, queries, unit, description, empty, width, 8, *drawn)


def bars(
    title: str,
    queries: Sequence[Query],
    unit: str,
    description: str,
    *,
    empty: str,
    width: int = 12,
    least: float | None = 0,
    traces: str = "",
    colours: Mapping[str, str] = NONE,
) -> Panel:
    """How many in each step, stacked. `colours` are of series by the end of their names."""
    drawn = _drawn({"drawStyle": "bars", "fillOpacity": 80, "showPoints": "never", **_STACK}, least, width, ("sum",))
    fixed = [coloured(f"{end}$", colour) for end, colour in colours.items()]
    return Panel("timeseries", title, queries, unit, description, empty, width, 8, *drawn, {"interval": STEP}, fixed, traces)


def stacked(title: str, queries: Sequence[Query], unit: str, description: str, *, empty: str, width: int = 12) -> Panel:
    """Parts of a whole over time."""
    drawn = _drawn({"fillOpacity": 60, "lineInterpolation": "stepAfter", **_STACK}, 0, width, ("lastNotNull",))
    return Panel("timeseries", title, queries, unit, description, empty, width, 8, *drawn)


def _drawn(
    style: dict[str, Any], least: float | None, width: int, summary: Sequence[str], fields: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields and options of a graph over time. Below it a table would show two rows; beside it there is room in a wide panel."""
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "auto", "spanNulls": False, **style}
    axis = {} if least is None else {"min": least}
    beside: dict[str, Any] = {"displayMode": "table", "placement": "right", "calcs": list(summary)}
    legend = {"showLegend": True, **(beside if width >= _WIDE else {"displayMode": "list", "placement": "bottom", "calcs": []})}
    shown = {"color": {"mode": "palette-classic"}, "custom": custom, **(fields or {}), **axis}
    return shown, {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def heatmap(title: str, query: Query, unit: str, description: str, *, empty: str, width: int = 12) -> Panel:
    """A histogram over time: `unit` is that of its axis, its cells are counts."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {**_HEAT, "scale": "exponential"},
        "exemplars": {"color": "rgba(120,120,255,0.9)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "unit": unit, "reverse": False},
    }
    return Panel("heatmap", title, [query], COUNT, description, empty, width, 8, {}, options, {"interval": STEP})


def states(title: str, query: Query, texts: Texts, description: str, *, empty: str, traces: str) -> Panel:
    """What each one was, over time. The colour mode is not `thresholds`: with that, Grafana does not show the texts."""
    fields = {"color": {"mode": "fixed", "fixedColor": "text"}, "custom": {"fillOpacity": 80, "lineWidth": 0}, "mappings": mappings(texts)}
    options = {
        "mergeValues": True,
        "showValue": "auto",
        "alignValue": "left",
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return Panel("state-timeline", title, [query], "none", description, empty, 24, 6, fields, options, traces=traces)


def ranking(title: str, query: Query, unit: str, description: str, *, empty: str) -> Panel:
    """The largest ones, as bars."""
    fields = {"color": {"mode": "continuous-BlPu"}, "thresholds": thresholds(PLAIN), "min": 0}
    options = {"displayMode": "gradient", "orientation": "horizontal", "showUnfilled": True, "reduceOptions": _LAST}
    return Panel("bargauge", title, [query.now()], unit, description, empty, 12, 8, fields, options)


@dataclass(frozen=True)
class Column:
    """A column of a table: its title, its question, its unit, and from where on it is coloured."""

    title: str
    query: Query
    unit: str
    steps: Steps = ()
    texts: Texts = field(default_factory=dict)

    def as_override(self) -> dict[str, Any]:
        words = [*(mappings(self.texts) if self.texts else []), nothing("–")]
        properties: list[dict[str, Any]] = [{"id": "unit", "value": self.unit}, {"id": "mappings", "value": words}]
        if self.unit == COUNT:
            properties.append({"id": "decimals", "value": 0})
        if self.steps:
            properties.append({"id": "thresholds", "value": thresholds(self.steps)})
        if self.steps or self.texts:
            properties.append({"id": "custom.cellOptions", "value": {"type": "color-text"}})
        return {"matcher": {"id": "byName", "options": self.title}, "properties": properties}


def table(title: str, columns: Sequence[Column], by: Sequence[str], description: str, *, empty: str, width: int = 24) -> Panel:
    """A row for each of `by`, a column for each question; sorted by the first, the worst on top."""
    values = {f"Value #{ref}": column.title for column, ref in zip(columns, ascii_uppercase, strict=False)}
    order = {name: place for place, name in enumerate([*by, *values])}
    renamed = {**{name: name.capitalize() for name in by}, **values}
    organize = {"excludeByName": {"Time": True, "Value": True}, "indexByName": order, "renameByName": renamed}
    more = {"transformations": [{"id": "merge", "options": {}}, {"id": "organize", "options": organize}]}
    fields = {"custom": {"align": "auto", "minWidth": 80}}
    options = {"showHeader": True, "cellHeight": "sm", "sortBy": [{"displayName": columns[0].title, "desc": True}]}
    rows = [column.query.row() for column in columns]
    overrides = [*(_filtered(name.capitalize()) for name in by), *(column.as_override() for column in columns)]
    return Panel("table", title, rows, "none", description, empty, width, 8, fields, options, more, overrides)


def _filtered(label: str) -> dict[str, Any]:
    return {"matcher": {"id": "byName", "options": label}, "properties": [{"id": "custom.filterable", "value": True}]}
