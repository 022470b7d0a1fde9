"""The part of the classic Grafana dashboard schema (version 42) that our dashboards use. Types are strict and unknown keys are rejected.

After `jsonschema/dashboard.jsonschema.json` of grafana/grafana-foundation-sdk. Grafana itself accepts nearly anything, and then shows nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Rejects unknown keys."""


class DataSource(Strict):
    type: Literal["prometheus"]
    uid: Literal["${prometheus_datasource}"]


class GridPos(Strict):
    x: int
    y: int
    w: int
    h: int


class Step(Strict):
    value: float | None
    color: str


class Thresholds(Strict):
    mode: Literal["absolute"]
    steps: list[Step]


class Text(Strict):
    text: str
    color: str
    index: int


class Words(Strict, tag_field="type", tag="value"):
    options: dict[str, Text]


class WhereNull(Strict):
    match: Literal["null"]
    result: Text


class Special(Strict, tag_field="type", tag="special"):
    options: WhereNull


class DataLink(Strict):
    title: str
    url: str
    targetBlank: bool


class Colour(Strict):
    mode: Literal["thresholds", "palette-classic", "fixed", "shades", "continuous-BlPu"]
    fixedColor: str = ""


class Defaults(Strict):
    unit: str
    noValue: str
    decimals: int = 0
    min: float = 0
    color: Colour | None = None
    custom: dict[str, Any] = {}
    thresholds: Thresholds | None = None
    mappings: list[Words | Special] = []
    links: list[DataLink] = []


class Matcher(Strict):
    id: Literal["byName", "byRegexp"]
    options: str


class Property(Strict):
    id: Literal[
        "unit", "decimals", "mappings", "thresholds", "color", "custom.cellOptions", "custom.filterable", "custom.width", "custom.lineStyle"
    ]
    value: Any


class Override(Strict):
    matcher: Matcher
    properties: list[Property]


class FieldConfig(Strict):
    defaults: Defaults
    overrides: list[Override]


class Target(Strict):
    refId: str
    datasource: DataSource
    editorMode: Literal["code"]
    expr: str
    format: Literal["time_series", "table", "heatmap"]
    legendFormat: str
    instant: bool
    range: bool
    exemplar: bool = False


class Transformation(Strict):
    id: Literal["merge", "organize"]
    options: dict[str, Any]


class Shown(Strict, tag_field="type"):
    id: int
    title: str
    description: str
    datasource: DataSource
    gridPos: GridPos
    targets: list[Target]
    fieldConfig: FieldConfig
    options: dict[str, Any]
    interval: str = ""
    transformations: list[Transformation] = []


class Stat(Shown, tag="stat"): ...


class TimeSeries(Shown, tag="timeseries"): ...


class Heatmap(Shown, tag="heatmap"): ...


class StateTimeline(Shown, tag="state-timeline"): ...


class BarGauge(Shown, tag="bargauge"): ...


class Table(Shown, tag="table"): ...


class Row(Strict, tag_field="type", tag="row"):
    id: int
    title: str
    collapsed: bool
    gridPos: GridPos
    panels: list[Stat | TimeSeries | Heatmap | StateTimeline | BarGauge | Table]


class Link(Strict):
    title: str
    type: Literal["dashboards"]
    tags: list[str]
    asDropdown: bool
    icon: str
    tooltip: str
    url: str
    includeVars: bool
    keepTime: bool
    targetBlank: bool


class Option(Strict):
    text: str = ""
    value: str = ""
    selected: bool = False


class PanelQuery(Strict):
    query: str
    refId: str


class Variable(Strict):
    name: str
    label: str
    type: Literal["datasource", "query", "custom", "interval"]
    query: str | PanelQuery
    current: Option
    hide: int
    datasource: DataSource | None = None
    definition: str = ""
    refresh: int = 0
    sort: int = 0
    includeAll: bool = False
    allValue: str = ""
    multi: bool = False
    auto: bool = False
    options: list[Option] = []


class Templating(Strict, rename={"variables": "list"}):
    variables: list[Variable]


class Annotations(Strict, rename={"queries": "list"}):
    queries: list[Any]


class Time(Strict, rename={"begin": "from", "end": "to"}):
    begin: str
    end: str


class Dashboard(Strict):
    uid: str
    title: str
    description: str
    tags: list[str]
    schemaVersion: Literal[42]
    version: int
    editable: bool
    graphTooltip: int
    refresh: str
    time: Time
    timezone: str
    annotations: Annotations
    links: list[Link]
    templating: Templating
    panels: list[Row | Stat | TimeSeries | Heatmap | StateTimeline | BarGauge | Table]
