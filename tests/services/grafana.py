"""Evaluates dashboards as Grafana would: variables, intervals, legends, thresholds and units."""

from __future__ import annotations

import json
import re
import time
import urllib.error
from dataclasses import dataclass, field

import telemetry

SCRAPE = 0.5
RANGE = 600
STEP = 1
WINDOW = 3
VARIABLES = {"window": f"{WINDOW}s", "__range": f"{RANGE}s"}


@dataclass
class Answer:
    """The result of one query of a panel: labels, legend and numeric values of each series."""

    query: str
    labels: list[dict[str, str]] = field(default_factory=list)
    legends: list[str] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)
    refusal: str = ""

    @property
    def last(self):
        return [values[-1] for values in self.values]


def panels(dashboard):
    """Return the panels that show data, in reading order."""
    return sorted(
        (panel for panel in dashboard["panels"] if panel["type"] != "row"), key=lambda panel: (panel["gridPos"]["y"], panel["gridPos"]["x"])
    )


def interpolated(dashboard, panel, expression):
    """Return the expression with all variables replaced as Grafana does if `All` is selected, and the step."""
    step = max(STEP, _seconds(panel.get("interval", "1s")))
    chosen = {variable["name"]: variable.get("allValue", "") for variable in dashboard["templating"]["list"]}
    values = {**chosen, **VARIABLES, "__interval": f"{step}s", "__rate_interval": f"{max(step + SCRAPE, 4 * SCRAPE) * 1000:.0f}ms"}
    return re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda match: values[match[1] or match[2]], expression), step


def run_queries(server, dashboard, panel):
    """Run every query of a panel."""
    return [_answer(server, dashboard, panel, target) for target in panel["targets"]]


def _answer(server, dashboard, panel, target):
    expression, step = interpolated(dashboard, panel, target["expr"])
    now = time.time()
    when = {"time": now} if target["instant"] else {"start": now - RANGE, "end": now, "step": step}
    url = f"http://127.0.0.1:{server.port}/api/v1/query{'' if target['instant'] else '_range'}"
    answer = Answer(expression)
    try:
        result = telemetry.get(url, query=expression, **when)["data"]["result"]
    except urllib.error.HTTPError as error:
        answer.refusal = json.load(error)["error"]
        return answer
    for series in result:
        samples = [series["value"]] if target["instant"] else series["values"]
        if values := [float(value) for _, value in samples if value != "NaN"]:
            answer.labels.append(series["metric"])
            answer.legends.append(
                re.sub(r"\{\{(\w+)\}\}", lambda match, has=series["metric"]: has.get(match[1], ""), target.get("legendFormat", ""))
            )
            answer.values.append(values)
    return answer


def colour(panel, value):
    """Return the colour of a value by the panel's thresholds; empty if there is only one."""
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", ())
    return [step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1] if len(steps) > 1 else ""


def choices(server, variable, dashboard):
    """Return the values that a label variable offers."""
    metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
    matched, _ = interpolated(dashboard, {}, metric)
    return telemetry.get(f"http://127.0.0.1:{server.port}/api/v1/label/{label}/values", **{"match[]": matched})["data"]


def shown(unit, value):
    """Format a value for a person."""
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit in ("bytes", "Bps"):
        power = next((power for power in range(5) if abs(value) < 1024 ** (power + 1)), 4)
        return f"{value / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}{'/s' if unit == 'Bps' else ''}"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s" if abs(value) < 120 else f"{value / 3600:.3g} h"
    return f"{value:.0f}" if unit == "locale" else f"{value:.3g}"


def _seconds(text):
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]
