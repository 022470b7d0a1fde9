"""Colours by meaning, the same on every dashboard: ok is green, an error red, an interruption purple.

Series with known names that are neither good nor bad have neutral colours, so that only failures look like failures. The names of
tasks, jobs, instances and exporters are not known in advance: their lines have colours of Grafana's palette, which are easy to tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ckpt_observe.semconv.metrics import DROP_REASONS, RECORD_EVENTS
from ckpt_observe.semconv.values import OPERATIONS as OPERATION_NAMES
from ckpt_observe.semconv.values import PHASES as PHASE_NAMES

OK: Final = "green"
WARNING: Final = "orange"
ERROR: Final = "red"
INTERRUPTED: Final = "purple"
UNKNOWN: Final = "gray"

NEUTRAL: Final = (
    "#5794F2", "#E0B400", "#37B5AA", "#C08552", "#8AB8FF", "#F2A6C9", "#8E9BAE", "#1F60C4", "#FFEE99", "#1B7F79", "#D9C2A3", "#A8B400",
    "#7FD6E8", "#8C6D46", "#C0D8FF", "#5C6B7A", "#D683A8", "#3A8FB7", "#F0D58C",
)  # fmt: skip
"""Colours that neither praise nor blame, one for each phase, in an order in which neighbours differ."""
SHADES: Final = {"mode": "shades", "fixedColor": "blue"}
"""For stacked series with names that are not known in advance."""

OUTCOMES: Final = {"ok": OK, "error": ERROR, "interrupted": INTERRUPTED, "cancelled": "yellow", "skipped": "blue"}
ERROR_CLASSES: Final = {
    "storage": "dark-red",
    "serialization": "semi-dark-orange",
    "compression": "light-orange",
    "integrity": ERROR,
    "compatibility": "super-light-orange",
    "not_found": "light-red",
    "conflict": "dark-yellow",
    "timeout": "light-yellow",
    "unavailable": WARNING,
    "permission": "super-light-red",
    "capacity": "semi-dark-red",
    "interrupted": INTERRUPTED,
    "cancelled": OUTCOMES["cancelled"],
    "configuration": "dark-orange",
    "unknown": UNKNOWN,
}
"""A warm colour for each class, so that no error is green or blue."""
PROCESS_STATES: Final = {"live": OK, "dead": INTERRUPTED}
DROPS: Final = dict(zip(DROP_REASONS, ("red", "dark-red", "light-orange", "orange", "light-red", "gray"), strict=True))
FALLBACKS: Final = dict(zip(RECORD_EVENTS, ("light-orange", "orange"), strict=True))
DELIVERY_FAILURES: Final = {"retries": WARNING, "refused": ERROR, "set aside": "yellow"}
DIRECTIONS: Final = {"saved": "blue", "removed": "light-blue", "write": "blue", "read": "light-blue"}
REMOVALS: Final = {"prune": "blue", "delete": "light-blue"}
PERCENTILES: Final = {"p50": "light-blue", "p95": "blue", "p99": "dark-blue", "slowest": "dark-blue"}


def _neutral(names: Iterable[str]) -> dict[str, str]:
    return dict(zip(names, NEUTRAL, strict=False))


OPERATIONS: Final = _neutral(OPERATION_NAMES)
PHASES: Final = _neutral(PHASE_NAMES)
SIZES: Final = _neutral(("stored", "serialized", "state"))
ASYNC_TIMES: Final = _neutral(("blocked", "released", "pending", "durable"))


def series_colours(colours: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return overrides that give a fixed colour to the series whose names are a key, or end with one after a space."""
    return [_series_colour(f"(^| ){name}$", colour) for name, colour in colours.items()]


def _series_colour(series: str, colour: str) -> dict[str, Any]:
    properties = [{"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}]
    return {"matcher": {"id": "byRegexp", "options": f"/{series}/"}, "properties": properties}
