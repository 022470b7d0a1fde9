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
WINDOW = 5
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
    """Return the panels that show data, in reading order, including those of collapsed rows."""
    return [each for panel in dashboard["panels"] for each in (panel["panels"] if panel["type"] == "row" else [panel])]


def interpolated(dashboard, panel, expression, selected=None):
    """Return the expression with all variables replaced as Grafana does if `All` or one value is selected, and the step."""
    step = max(STEP, _seconds(panel.get("interval", "1s")))
    chosen = {variable["name"]: variable.get("allValue", "") for variable in dashboard["templating"]["list"]}
    resolved = {**chosen, **VARIABLES, "__interval": f"{step}s", "__rate_interval": f"{max(step + SCRAPE, 4 * SCRAPE) * 1000:.0f}ms"}
    resolved |= {name: re.escape(value).replace("\\", "\\\\") for name, value in (selected or {}).items()}
    return re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda match: resolved[match[1] or match[2]], expression), step


def run_queries(server, dashboard, panel, moment=None, selected=None, seconds=RANGE):
    """Run every query of a panel, with a time range of so many seconds that ends now or at a moment. `selected` has values of variables."""
    variables = {**(selected or {}), "__range": f"{seconds}s"}
    end = moment or time.time()
    return [_answer(server, dashboard, panel, target, (end - seconds, end), variables) for target in panel["targets"]]


def _answer(server, dashboard, panel, target, times, variables):
    expression, step = interpolated(dashboard, panel, target["expr"], variables)
    start, end = times
    when = {"time": end} if target["instant"] else {"start": start, "end": end, "step": step}
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
                re.sub(
                    r"\{\{(\w+)\}\}",
                    lambda match, has=series["metric"]: has.get(match[1], ""),
                    target.get("legendFormat", "").replace("$window", VARIABLES["window"]),
                )
            )
            answer.values.append(values)
    return answer


def values(panel, answers):
    """Return what a panel shows, by series: the last value of each, the total of bars and of a heatmap, and of a table each cell by column and row."""
    if panel["type"] == "table":
        [organize] = [each["options"] for each in panel["transformations"] if each["id"] == "organize"]
        columns = [title for name, title in organize["renameByName"].items() if name.startswith("Value")]
        keys = [name for name in organize["renameByName"] if not name.startswith("Value")]
        return {
            f"{column}: {' · '.join(labels[key] for key in keys if key not in ('job', 'instance'))}": last
            for column, answer in zip(columns, answers, strict=True)
            for labels, last in zip(answer.labels, answer.last, strict=True)
        }
    if panel["type"] == "heatmap":
        [answer] = answers
        return {"count": sum(sum(each) for legend, each in zip(answer.legends, answer.values, strict=True) if legend == "+Inf")}
    is_total = panel["fieldConfig"]["defaults"].get("custom", {}).get("drawStyle") == "bars"
    reduce = sum if is_total else lambda series: series[-1]
    return {legend: reduce(each) for answer in answers for legend, each in zip(answer.legends, answer.values, strict=True)}


def colour(panel, value):
    """Return the colour of a value by the panel's thresholds; empty if there is only one."""
    steps = panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", ())
    return [step["color"] for step in steps if step["value"] is None or value >= step["value"]][-1] if len(steps) > 1 else ""


def choices(server, variable, dashboard):
    """Return the values that a label variable offers."""
    metric, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"]).groups()
    matched, _ = interpolated(dashboard, {}, metric)
    return telemetry.get(f"http://127.0.0.1:{server.port}/api/v1/label/{label}/values", **{"match[]": matched})["data"]


def _seconds(text):
    return int(text[:-1]) * {"s": 1, "m": 60}[text[-1]]
