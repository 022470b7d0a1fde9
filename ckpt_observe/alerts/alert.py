"""The definition of an alert, and the parts from which its PromQL expression is built.

Labels that a site adds (cluster, region) are kept: no expression matches `on` a list of labels.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ckpt_observe.alerts.site import Site, format_duration
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import MetricSpec

CRITICAL: Final = "critical"
"""Pages somebody: work is being lost or cannot be recovered."""
WARNING: Final = "warning"
"""To be looked at during working hours."""
NONE: Final = "none"
"""Only for the watchdog, which goes to the receiver `deadman` and to nobody else."""

# Templates for descriptions
TASK: Final = "task {{ $labels.task }} on {{ $labels.instance }}"
OPERATION: Final = "{{ $labels.operation }}"
VALUE: Final = "{{ $value | humanize }}"
PERCENTAGE: Final = "{{ $value | humanizePercentage }}"
DURATION: Final = "{{ $value | humanizeDuration }}"
TIMESTAMP: Final = "{{ $value | humanizeTimestamp }}"
BYTES: Final = "{{ $value | humanize1024 }}B"

# Label matchers
SAVE: Final = 'operation="save"'
READ: Final = 'operation=~"load|restore|drill"'
FAILED: Final = 'outcome=~"error|interrupted"'
COMPLETED: Final = 'outcome=~"ok|error|interrupted"'
"""All operations that count for a failure ratio. Skipped and cancelled ones are neither a success nor a failure."""
STORED: Final = 'kind="stored"'
INTERRUPTED: Final = 'error_class="interrupted"'
DAMAGED: Final = 'error_class="integrity"'


_OF_TASK: Final = ("job", "instance", "task")
OF_OPERATION: Final = (*_OF_TASK, "operation")
"""Labels that select a task, and one of its operations, on a dashboard."""


class Alert(NamedTuple):
    """An alert. The runbook has a section with its name."""

    name: str
    severity: str
    expr: str
    summary: str
    """One sentence that is the same for every task, so that notifications can be grouped."""
    description: str
    """A sentence with the names and numbers of the task."""
    hold: float = 0.0
    """Seconds for which the expression must be true before the alert fires."""
    inhibits: tuple[str, ...] = ()
    """Names of alerts that are not sent for the same task while this one fires."""
    labels: dict[str, str] = {}  # noqa: RUF012 - never changed
    dashboard: str = "overview"
    """Name of the dashboard that shows the trouble."""
    links_by: tuple[str, ...] = _OF_TASK
    """Labels of the alert that select the same series on the dashboard."""
    traces: tuple[tuple[str, str], ...] | None = None
    """Attributes of the operations that caused the alert, besides their task. None if traces do not explain it."""


def series(spec: MetricSpec, *matchers: str, part: str = "", over: float = 0.0, offset: float = 0.0) -> str:
    """Return a selector for a metric. `part` is `_sum` or `_count`, `over` the range in seconds, `offset` how many seconds ago it ends."""
    labels = f"{{{', '.join(matchers)}}}" if matchers else ""
    span = f"[{format_duration(over)}]" if over else ""
    return spec.prometheus_name + part + labels + span + (f" offset {format_duration(offset)}" if offset else "")


def operation_count(*matchers: str, over: float) -> str:
    """Return an expression for the number of matching operations that ended in the last `over` seconds, by operation and task."""
    return f"sum without (outcome, error_class, system, store) (increase({series(metrics.OPERATIONS, *matchers, over=over)}))"


def last_failure(*matchers: str) -> str:
    """Return an expression for the time of the last matching failure, by operation and task."""
    return f"max without (error_class) ({series(metrics.LAST_FAILURE, *matchers)})"


def is_attempted(matcher: str, site: Site) -> str:
    """Return a PromQL condition: the operation is not abandoned. It was attempted recently enough for the site, or for its own interval."""
    age = f"time() - {series(metrics.LAST_ATTEMPT, matcher)}"
    return f"({age} < {number(site.abandoned_after)} or {age} < {of_task(metrics.LATE_AFTER)})"


def of_task(intervals: float) -> str:
    """Return so many save intervals of the task, declared or learnt, as the right side of a comparison. No result if it has none."""
    factor = "" if intervals == 1 else f"{number(intervals)} * "
    return f"ignoring (operation) group_left () {factor}{series(metrics.EXPECTED_INTERVAL)}"


def longer_than_interval(age: str, site: Site, part: int = 1) -> str:
    """Return the ages above the task's own save interval, or a part of it; of tasks without one, above the interval of the site."""
    own_interval = f"{of_task(1)} / {part}" if part > 1 else of_task(1)
    without_interval = f"unless ignoring (operation) {series(metrics.EXPECTED_INTERVAL)}"
    return f"({age} > {own_interval}\nor ({age} > {number(site.interval / part)} {without_interval}))"


def number(value: float) -> str:
    """Return a number without an exponent, which is hard to read in a rule."""
    return f"{value:.6f}".rstrip("0").rstrip(".")
