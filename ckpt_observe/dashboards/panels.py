"""Panels as Grafana reads them. Every panel has a title, a description that says what to do, a unit, and a text for "no data"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any, Final

from ckpt_observe.dashboards.colours import ERROR, OK, SHADES, WARNING, series_colours
from ckpt_observe.dashboards.promql import PanelQuery

DATASOURCE: Final = {"type": "prometheus", "uid": "${prometheus_datasource}"}
COUNT: Final = "locale"
"""Unit for counts, shown with all digits. Prometheus extrapolates, so one event may be returned as 1.07; it is shown as 1."""

Steps = Sequence[tuple[float | None, str]]
"""Thresholds: lower bound and colour. The first one has no lower bound."""
Texts = dict[str, tuple[str, str]]
"""The text and colour to show for each value."""

PLAIN: Final[Steps] = ((None, "text"),)
STEP: Final = "1m"
"""Minimum step of bars. If scrapes are at most 20 s apart, `$__rate_interval` is then one step plus one scrape interval."""

_WIDE: Final = 12
LAST_VALUE: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_SUMMARY_TITLES: Final = {"lastNotNull": "Last *", "sum": "Total"}
"""How Grafana titles the columns of a legend; it sorts by title."""
_STACK: Final = {"stacking": {"mode": "normal", "group": "A"}}
_HEAT: Final = {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange", "reverse": False}


@dataclass(frozen=True)
class Panel:
    """A panel. `fields`, `options` and `extra` are Grafana's settings for the panel type."""

    type: str
    title: str
    queries: Sequence[PanelQuery]
    unit: str
    description: str
    empty: str
    width: int
    height: int
    fields: dict[str, Any]
    options: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    overrides: Sequence[dict[str, Any]] = ()
    traces: str = ""
    """Tag of the traces that the panel links to, `name=value`. The value may be a label of the series."""

    def as_json(self, id: int, x: int, y: int) -> dict[str, Any]:
        decimals = {"decimals": 0} if self.unit == COUNT else {}
        defaults = {"unit": self.unit, "noValue": self.empty, **decimals, **self.fields}
        return {
            "id": id,
            "type": self.type,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "targets": [_target(query, ref) for query, ref in zip(self.queries, ascii_uppercase, strict=False)],
            "fieldConfig": {"defaults": defaults, "overrides": list(self.overrides)},
            "options": self.options,
            **self.extra,
        }


def _target(query: PanelQuery, ref: str) -> dict[str, Any]:
    is_instant = query.shape in ("instant", "table")
    format = query.shape if query.shape in ("table", "heatmap") else "time_series"
    target = {
        "refId": ref,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "format": format,
        "legendFormat": query.legend,
    }
    return {**target, "instant": is_instant, "range": not is_instant, **({"exemplar": True} if query.exemplar else {})}


def above(warning: float, critical: float) -> Steps:
    """Return thresholds for a value that should be low: orange from `warning` on, red from `critical` on."""
    return ((None, OK), (warning, WARNING), (critical, ERROR))


def below(critical: float, warning: float) -> Steps:
    """Return thresholds for a value that should be high: red below `critical`, orange below `warning`."""
    return ((None, ERROR), (critical, WARNING), (warning, OK))


def thresholds(steps: Steps) -> dict[str, Any]:
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps]}


def value_texts(texts: Texts) -> list[dict[str, Any]]:
    """Return mappings from values to texts, because not everybody can tell colours apart."""
    options = {value: {"text": text, "color": colour, "index": index} for index, (value, (text, colour)) in enumerate(texts.items())}
    return [{"type": "value", "options": options}]


def null_text(text: str) -> dict[str, Any]:
    """Return a mapping for "no value" without a colour. By default Grafana uses the colour of the lowest value, which misleads."""
    return {"type": "special", "options": {"match": "null", "result": {"text": text, "color": "text", "index": 0}}}


def stat(title: str, query: PanelQuery, unit: str, description: str, *, empty: str, steps: Steps = PLAIN, width: int = 4) -> Panel:
    """Return a panel with one number."""
    fields = {"color": {"mode": "thresholds"}, "thresholds": thresholds(steps), "mappings": [null_text(empty)]}
    options = {"reduceOptions": LAST_VALUE, "colorMode": "value", "graphMode": "none", "textMode": "value"}
    return Panel("stat", title, [query.as_instant()], unit, description, empty, width, 4, fields, options)


def lines(
    title: str,
    queries: Sequence[PanelQuery],
    unit: str,
    description: str,
    *,
    empty: str,
    width: int = 12,
    steps: Steps = (),
    minimum: float | None = 0,
    logarithmic: bool = False,
    colours: Mapping[str, str] | None = None,
    dashed: str = "",
) -> Panel:
    """Return a line graph. `minimum` is the start of the axis (None: automatic); a logarithmic axis, for large differences, ignores it.

    Lines whose names match the regular expression `dashed` are dashed.
    """
    style: dict[str, Any] = {"thresholdsStyle": {"mode": "dashed"}} if steps else {}
    if logarithmic:
        style, minimum = {"scaleDistribution": {"type": "log", "log": 10}}, None
    graph = _time_series(style, minimum, width, ("lastNotNull",), {"thresholds": thresholds(steps)} if steps else {})
    overrides = [*series_colours(colours or {}), *([_dashed_lines(dashed)] if dashed else [])]
    return Panel("timeseries", title, queries, unit, description, empty, width, 8, *graph, overrides=overrides)


def _dashed_lines(series: str) -> dict[str, Any]:
    style = {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}}
    return {"matcher": {"id": "byRegexp", "options": f"/{series}/"}, "properties": [style]}


def bars(
    title: str,
    queries: Sequence[PanelQuery],
    unit: str,
    description: str,
    *,
    empty: str,
    width: int = 12,
    minimum: float | None = 0,
    traces: str = "",
    colours: Mapping[str, str] | None = None,
) -> Panel:
    """Return stacked bars of counts per step."""
    style = {"drawStyle": "bars", "fillOpacity": 80, "showPoints": "never", **_STACK}
    graph = _time_series(style, minimum, width, ("sum",), {} if colours else {"color": SHADES})
    overrides = series_colours(colours or {})
    return Panel("timeseries", title, queries, unit, description, empty, width, 8, *graph, {"interval": STEP}, overrides, traces)


def stacked_areas(
    title: str,
    queries: Sequence[PanelQuery],
    unit: str,
    description: str,
    *,
    empty: str,
    width: int = 12,
    colours: Mapping[str, str] | None = None,
) -> Panel:
    """Return a graph of the parts of a whole over time."""
    style = {"fillOpacity": 60, "lineInterpolation": "stepAfter", **_STACK}
    graph = _time_series(style, 0, width, ("lastNotNull",), {} if colours else {"color": SHADES})
    return Panel("timeseries", title, queries, unit, description, empty, width, 8, *graph, overrides=series_colours(colours or {}))


def _time_series(
    style: dict[str, Any], minimum: float | None, width: int, summary: Sequence[str], fields: dict[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields and options of a graph. The legend is a table beside a wide graph, highest first, and a list below a narrow one."""
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 0, "showPoints": "auto", "spanNulls": False, **style}
    axis = {} if minimum is None else {"min": minimum}
    order = {"sortBy": _SUMMARY_TITLES[summary[0]], "sortDesc": True}
    table_legend: dict[str, Any] = {"displayMode": "table", "placement": "right", "calcs": list(summary), **order}
    legend = {"showLegend": True, **(table_legend if width >= _WIDE else {"displayMode": "list", "placement": "bottom", "calcs": []})}
    settings = {"color": {"mode": "palette-classic"}, "custom": custom, **(fields or {}), **axis}
    return settings, {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}


def heatmap(title: str, query: PanelQuery, unit: str, description: str, *, empty: str, width: int = 12) -> Panel:
    """Return a heatmap of a histogram over time. `unit` is the unit of its vertical axis; the cells are counts."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {**_HEAT, "scale": "exponential"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "yHistogram": False, "showColorScale": True},
        "yAxis": {"axisPlacement": "left", "unit": unit, "reverse": False},
    }
    return Panel("heatmap", title, [query], COUNT, description, empty, width, 8, {}, options, {"interval": STEP})
