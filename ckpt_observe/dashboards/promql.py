"""Building blocks of PromQL queries. Metric names come from `semconv`; a label that a metric does not have is an error."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ckpt_observe.semconv.metrics import MetricSpec

TASK_LABELS: Final = "job, task"
"""Labels that identify a task. Not `instance`: a task can be restored from its newest checkpoint, whichever instance saved it."""
LINES: Final = 8
"""Number of lines that a reader can tell apart in one graph, and that fit its legend."""


class PanelQuery(NamedTuple):
    """A query. `shape` is `range`, `instant`, `table` (instant, for a table) or `heatmap`."""

    expr: str
    legend: str = ""
    shape: str = "range"
    exemplar: bool = False

    def as_instant(self) -> PanelQuery:
        """Return the same query for the current moment only."""
        return self._replace(shape="instant")

    def as_column(self) -> PanelQuery:
        """Return the same query for a column of a table."""
        return self._replace(shape="table")


def series(spec: MetricSpec, part: str = "", **matchers: str) -> str:
    """Return a PromQL selector for a metric, restricted to the chosen job, instance and task. ValueError if it lacks a label.

    Matchers are regular expressions. `part` of a histogram is `bucket`, `sum` or `count`.
    """
    unknown = matchers.keys() - set(spec.labels)
    if unknown:
        raise ValueError(f"{spec.name} has no label {', '.join(sorted(unknown))}")
    labels = {"job": "$job", "instance": "$instance", **({"task": "$task"} if "task" in spec.labels else {}), **matchers}
    selector = ", ".join(f'{label}=~"{value}"' for label, value in labels.items())
    return f"{spec.prometheus_name}{part and '_' + part}{{{selector}}}"


def with_task_name(expr: str) -> str:
    """Return the expression with the task "(no task)" for operations outside any task."""
    return f'label_replace({expr}, "task", "(no task)", "task", "")'


def current(spec: MetricSpec, by: str = TASK_LABELS, **matchers: str) -> str:
    """Return an expression for the highest current value of each task."""
    return f"max by ({by}) ({series(spec, **matchers)})"


def last_known(spec: MetricSpec, by: str = TASK_LABELS, **matchers: str) -> str:
    """Return an expression for the highest last value of each task in the time range, including ended series; the latest of timestamps."""
    return f"max by ({by}) (last_over_time({series(spec, **matchers)}[$__range]))"


def current_or_last(spec: MetricSpec, **matchers: str) -> str:
    """Return an expression for the current value of each task, or for its last one in the time range if nothing reports it any more."""
    return f"({current(spec, **matchers)} or {last_known(spec, **matchers)})"


def mean(spec: MetricSpec, by: str, window: str = "[$window]", **matchers: str) -> str:
    total, count = (f"sum by ({by}) (increase({series(spec, part, **matchers)}{window}))" for part in ("sum", "count"))
    return f"{total} / ({count} > 0)"


def quantile(of: float, spec: MetricSpec, by: str = "", window: str = "[$window]", **matchers: str) -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({of}, sum by ({labels}) (increase({series(spec, 'bucket', **matchers)}{window})))"


def at_end(expr: str) -> str:
    """Return the expression as of the end of the time range, at every step of a graph."""
    return re.sub(r"(\{[^{}]*\}(?:\[[^\]]*\])?)", r"\1 @ end()", expr)


def highest(expr: str, by: str = TASK_LABELS, rank: str = "", function: str = "topk") -> str:
    """Return the expression for the `LINES` label sets `by` for which `rank`, by default the expression itself, is highest at the end.

    `topk` alone would choose again at each step, so that a graph would have more lines, with gaps.
    """
    return f"({expr}) and on ({by}) {function}({LINES}, {at_end(rank or expr)})"


def increase_per_step(spec: MetricSpec, by: str, part: str = "", **matchers: str) -> str:
    """Return an expression for the increase in each step of a graph, by the labels `by`; steps without an increase have no value."""
    return f"sum by ({by}) (increase({series(spec, part, **matchers)}[$__rate_interval])) > 0"


def increase_in_range(spec: MetricSpec, part: str = "", by: str = "", **matchers: str) -> str:
    """Return an expression for the increase over the whole time range, in total or by the labels `by`."""
    return f"sum{f' by ({by}) ' if by else ''}(increase({series(spec, part, **matchers)}[$__range]))"
