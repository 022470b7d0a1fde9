"""A panel as Grafana reads it: what all kinds have. Each has a title, a sentence that says what to do, a unit, and words for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from string import ascii_uppercase
from typing import Any, Final

from ckpt_observe.dashboards.queries import Query
from ckpt_observe.dashboards.variables import DATASOURCE

COUNT: Final = "locale"
"""The unit of things that are counted, with all digits. Prometheus extrapolates: one event may come back as 1.07, and is shown as 1."""

Steps = Sequence[tuple[float | None, str]]
"""From which value on which colour; the first is for all below."""
Texts = dict[str, tuple[str, str]]
"""A value, and the text and colour that it is shown as."""

PLAIN: Final[Steps] = ((None, "text"),)


@dataclass(frozen=True)
class Panel:
    """One panel. `fields` and `options` are Grafana's own, by panel type; `more` is what only some types have."""

    type: str
    title: str
    queries: Sequence[Query]
    unit: str
    description: str
    empty: str
    width: int
    height: int
    fields: dict[str, Any]
    options: dict[str, Any]
    more: dict[str, Any] = field(default_factory=dict)
    overrides: Sequence[dict[str, Any]] = ()
    traces: str = ""
    """The tag of the traces that a link leads to, `name=value`; the value may be a label of the series."""

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
            "fieldConfig": {"defaults": defaults, "overrides": list(self.overrides)},
            "options": self.options,
            **self.more,
        }


def _target(query: Query, ref: str) -> dict[str, Any]:
    once = query.shape in ("instant", "table")
    form = query.shape if query.shape in ("table", "heatmap") else "time_series"
    target = {
        "refId": ref,
        "datasource": DATASOURCE,
        "editorMode": "code",
        "expr": query.expr,
        "format": form,
        "legendFormat": query.legend,
    }
    return {**target, "instant": once, "range": not once, **({"exemplar": True} if query.exemplar else {})}


def above(warning: float, critical: float) -> Steps:
    """The more, the worse."""
    return ((None, "green"), (warning, "orange"), (critical, "red"))


def below(critical: float, warning: float) -> Steps:
    """The less, the worse."""
    return ((None, "red"), (critical, "orange"), (warning, "green"))


def thresholds(steps: Steps) -> dict[str, Any]:
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps]}


def mappings(texts: Texts) -> list[dict[str, Any]]:
    """Words for values: a colour alone is not read by everybody."""
    options = {value: {"text": text, "color": colour, "index": place} for place, (value, (text, colour)) in enumerate(texts.items())}
    return [{"type": "value", "options": options}]


def nothing(text: str) -> dict[str, Any]:
    """Words for no value, without a colour: by itself Grafana gives it that of the lowest value, be it good or bad."""
    return {"type": "special", "options": {"match": "null", "result": {"text": text, "color": "text", "index": 0}}}


def coloured(series: str, colour: str) -> dict[str, Any]:
    """The series whose names match have this colour, whichever others there are."""
    properties = [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}]
    return {"matcher": {"id": "byRegexp", "options": f"/{series}/"}, "properties": properties}
