"""Every PromQL query of the dashboards, by name. Metric names come from `semconv`; a label that a metric does not have is an error.

Totals over the time range end with `[$__range]`. Bars over time end with `[$__rate_interval]`; their panels have a minimum step that makes
it one scrape longer than the step, so that no event is lost between two bars or counted twice. Percentiles, ratios and means end with
`[$window]`, which the user chooses, because checkpoints are too rare for Grafana's default interval.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import MetricSpec

TASK_LABELS: Final = "job, task"
"""Labels that identify a task. Not `instance`: a task can be restored from its newest checkpoint, whichever instance saved it."""
BY_TASK: Final = "{{job}} · {{task}}"
FAILED: Final = "error|interrupted"
LATE: Final = metrics.LATE_AFTER
"""Number of intervals after which a save is late, as in the alert. At 2 the next save may be about to finish."""


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


def current(spec: MetricSpec, **matchers: str) -> str:
    """Return an expression for the highest current value of each task."""
    return f"max by ({TASK_LABELS}) ({series(spec, **matchers)})"


def last_known(spec: MetricSpec, **matchers: str) -> str:
    """Return an expression for the highest last value of each task in the time range, including ended series; the latest of timestamps."""
    return f"max by ({TASK_LABELS}) (last_over_time({series(spec, **matchers)}[$__range]))"


def current_or_last(spec: MetricSpec, **matchers: str) -> str:
    """Return an expression for the current value of each task, or for its last one in the time range if nothing reports it any more."""
    return f"({current(spec, **matchers)} or {last_known(spec, **matchers)})"


def mean(spec: MetricSpec, by: str, **matchers: str) -> str:
    total, count = (f"sum by ({by}) (increase({series(spec, part, **matchers)}[$window]))" for part in ("sum", "count"))
    return f"{total} / ({count} > 0)"


def quantile(of: float, spec: MetricSpec, by: str, **matchers: str) -> str:
    return f"histogram_quantile({of}, sum by ({by}, le) (increase({series(spec, 'bucket', **matchers)}[$window])))"


def increase_per_step(spec: MetricSpec, by: str, part: str = "", **matchers: str) -> str:
    """Return an expression for the increase in each step of a graph, by the labels `by`; steps without an increase have no value."""
    return f"sum by ({by}) (increase({series(spec, part, **matchers)}[$__rate_interval])) > 0"


def increase_in_range(spec: MetricSpec, part: str = "", **matchers: str) -> str:
    """Return an expression for the increase over the whole time range."""
    return f"sum(increase({series(spec, part, **matchers)}[$__range]))"


LAST_SAVE: Final = last_known(metrics.LAST_SUCCESS, operation="save")
SAVE_AGE: Final = f"time() - {LAST_SAVE}"
RUN_START: Final = f"min by ({TASK_LABELS}) ({series(metrics.TASKS_OLDEST_START)})"
LAST_SCRAPE: Final = f"max by ({TASK_LABELS}) (timestamp({series(metrics.TASKS_OLDEST_START)}))"
"""Time of the last scrape or push. A task that saves more often than it is scraped must not look late between two scrapes."""
RUNNING: Final = f"(sum by ({TASK_LABELS}) ({series(metrics.TASKS_IN_FLIGHT)}) > 0)"
INTERVAL: Final = current_or_last(metrics.EXPECTED_INTERVAL)
FAILURES: Final = current_or_last(metrics.CONSECUTIVE_FAILURES, operation="save")
LATENESS: Final = (
    f"(({LAST_SCRAPE} - on ({TASK_LABELS}) ({LAST_SAVE} >= on ({TASK_LABELS}) {RUN_START} or {RUN_START}))"
    f" / on ({TASK_LABELS}) {INTERVAL}) and on ({TASK_LABELS}) {RUNNING}"
)
"""Time since the last good save, or the start of the run if that is later, divided by the expected interval. Only for running tasks."""
NEVER_SAVED: Final = (
    f"(time() - min by ({TASK_LABELS}) ({series(metrics.FIRST_ATTEMPT, operation='save')}) unless on ({TASK_LABELS}) {LAST_SAVE})"
)
WORK_AT_RISK: Final = f"(({SAVE_AGE}) or {NEVER_SAVED}) and on ({TASK_LABELS}) {RUNNING}"
FAILING: Final = f"2 * ({FAILURES} > bool 0)"
SILENT: Final = f"(({last_known(metrics.TASKS_IN_FLIGHT)} > 0) unless on ({TASK_LABELS}) {current(metrics.TASKS_IN_FLIGHT)}) * 0 - 1"
"""-1 for each task that was running when its metrics were last seen, and that has no metrics now."""

# Overview
save_age = PanelQuery(with_task_name(SAVE_AGE), BY_TASK)
expected_interval = PanelQuery(with_task_name(INTERVAL), f"{BY_TASK}: expected")
lateness = PanelQuery(with_task_name(LATENESS), BY_TASK)
max_lateness = PanelQuery(f"max({LATENESS})", "of the interval")
max_save_age = PanelQuery(f"max({SAVE_AGE})", "age")
work_at_risk = PanelQuery(f"max({WORK_AT_RISK})", "work at risk")
consecutive_failures = PanelQuery(with_task_name(FAILURES), BY_TASK)
max_consecutive_failures = PanelQuery(f"max({FAILURES})", "failures")
success_ratio = PanelQuery(
    f"{increase_in_range(metrics.OPERATIONS, operation='save', outcome='ok')}"
    f" / ({increase_in_range(metrics.OPERATIONS, operation='save', outcome='ok|' + FAILED)} > 0)",
    "successful saves",
)
operations_in_flight = PanelQuery(f"sum({series(metrics.IN_FLIGHT)})", "in flight")
oldest_in_flight = PanelQuery(f"max(time() - {series(metrics.OLDEST_START)})", "oldest")
in_flight_by_task = PanelQuery(with_task_name(f"max by ({TASK_LABELS}) (time() - {series(metrics.OLDEST_START)})"), BY_TASK)
storage_used = PanelQuery(f"sum({series(metrics.KEPT_BYTES)}) or sum(last_over_time({series(metrics.KEPT_BYTES)}[$__range]))", "used")
max_verified_age = PanelQuery(f"max(time() - {last_known(metrics.LAST_VERIFIED)})", "age")
verified_age = PanelQuery(with_task_name(f"time() - {last_known(metrics.LAST_VERIFIED)}"), BY_TASK)
corruption = PanelQuery(increase_in_range(metrics.CORRUPTION), "corrupted")
interruptions = PanelQuery(increase_in_range(metrics.OPERATIONS, outcome="interrupted"), "interrupted")
save_state = PanelQuery(
    with_task_name(f"({SILENT}) or ({FAILING} + on ({TASK_LABELS}) (({LATENESS}) > bool {LATE})) or ({FAILING})"), BY_TASK
)
running_tasks = PanelQuery(with_task_name(f"sum by ({TASK_LABELS}) ({series(metrics.TASKS_IN_FLIGHT)})"), BY_TASK)
last_size = PanelQuery(with_task_name(current_or_last(metrics.LAST_SIZE, kind="stored")), BY_TASK)

# Operations
outcomes = PanelQuery(increase_per_step(metrics.OPERATIONS, "operation, outcome", operation="$operation"), "{{operation}} {{outcome}}")
errors = PanelQuery(
    increase_per_step(metrics.OPERATIONS, "job, error_class", operation="$operation", outcome=FAILED), "{{job}} · {{error_class}}"
)
saves_by_outcome = PanelQuery(increase_per_step(metrics.OPERATIONS, "job, outcome", operation="save"), "{{job}} · {{outcome}}")
duration_percentiles = tuple(
    PanelQuery(
        quantile(of, metrics.OPERATION_DURATION, "operation", operation="$operation"),
        f"{{{{operation}}}} p{of * 100:.0f}",
        exemplar=of == 0.99,
    )
    for of in (0.5, 0.95, 0.99)
)
duration_heatmap = PanelQuery(
    f"sum by (le) (increase({series(metrics.OPERATION_DURATION, 'bucket', operation='$operation')}[$__rate_interval]))",
    "{{le}}",
    "heatmap",
    exemplar=True,
)
phase_times = PanelQuery(
    f"sum by (phase) (increase({series(metrics.PHASE_DURATION, 'sum', operation='$operation')}[$window])) / ignoring (phase) group_left ()"
    f" (sum(increase({series(metrics.OPERATION_DURATION, 'count', operation='$operation', task='.*')}[$window])) > 0)",
    "{{phase}}",
)
async_times = [
    PanelQuery(with_task_name(quantile(0.95, spec, TASK_LABELS)), f"{BY_TASK}: {word}")
    for spec, word in ((metrics.ASYNC_BLOCKED, "blocked"), (metrics.ASYNC_RELEASED, "released"))
]
async_pending = PanelQuery(with_task_name(quantile(0.95, metrics.ASYNC_PENDING, TASK_LABELS)), BY_TASK)
async_durable = PanelQuery(with_task_name(quantile(0.95, metrics.ASYNC_DURABLE, TASK_LABELS)), BY_TASK)
stragglers = PanelQuery(increase_per_step(metrics.STRAGGLER_DELAY, "job, phase", "count"), "{{job}} · {{phase}}")
straggler_delay = PanelQuery(increase_per_step(metrics.STRAGGLER_DELAY, "job, phase", "sum"), "{{job}} · {{phase}}")
work_at_risk_by_task = PanelQuery(with_task_name(WORK_AT_RISK), BY_TASK)
throughput = PanelQuery(mean(metrics.THROUGHPUT, "operation", operation="$operation"), "{{operation}}")
mean_size = PanelQuery(mean(metrics.SIZE, "kind", operation="$operation"), "{{kind}}")
compression_ratio = PanelQuery(with_task_name(mean(metrics.RATIO, TASK_LABELS)), BY_TASK)
last_duration = PanelQuery(
    with_task_name(f"max by ({TASK_LABELS}, operation) ({series(metrics.LAST_DURATION, operation='$operation')})"),
    f"{BY_TASK}: {{{{operation}}}}",
)
lost_work = PanelQuery(with_task_name(increase_per_step(metrics.RESTORE_AGE, TASK_LABELS, "sum")), BY_TASK)
task_runs = PanelQuery(increase_per_step(metrics.TASKS, "outcome"), "{{outcome}}")
cpu_time = PanelQuery(f"sum by (phase) (increase({series(metrics.PHASE_CPU_TIME, operation='$operation')}[$window]))", "{{phase}}")
disk_io = PanelQuery(f"sum by (direction) (increase({series(metrics.IO, operation='$operation')}[$window]))", "{{direction}}")
peak_memory = PanelQuery(with_task_name(current(metrics.MEMORY_PEAK, operation="$operation")), BY_TASK)

# Storage
FREE: Final = series(metrics.FREE_BYTES)
TREND: Final = f"{FREE} offset $window"
"""Has a value only if there was data a window ago. Without it no trend is shown: from the first minutes it would be a guess."""
SMALLEST_SIZE: Final = f"max by ({TASK_LABELS}) (min_over_time({series(metrics.LAST_SIZE, kind='serialized')}[$__range]))"
storage_used_by_task = PanelQuery(with_task_name(f"sum by ({TASK_LABELS}) ({series(metrics.KEPT_BYTES)})"), BY_TASK)
free_space = PanelQuery(with_task_name(f"min by ({TASK_LABELS}) ({FREE})"), BY_TASK)
free_space_forecast = PanelQuery(
    with_task_name(f"min by ({TASK_LABELS}) (predict_linear({FREE}[$window], 86400) and {TREND})"), f"{BY_TASK}: in a day"
)
min_free_space = PanelQuery(f"min({FREE})", "free")
time_until_full = PanelQuery(f"min({FREE} / -(deriv({FREE}[$window]) < 0 and {TREND}))", "until full")
saves_that_fit = PanelQuery(
    f"min(min by ({TASK_LABELS}) ({FREE}) / on ({TASK_LABELS}) ({current(metrics.LAST_SIZE, kind='stored')} > 0))", "saves"
)
bytes_saved = PanelQuery(f"sum(increase({series(metrics.SIZE, 'sum', kind='stored', operation='save')}[$__rate_interval]))", "saved")
bytes_removed = PanelQuery(f"-sum(increase({series(metrics.FREED_BYTES)}[$__rate_interval]))", "removed")
growth = PanelQuery(
    f"{increase_in_range(metrics.SIZE, 'sum', kind='stored', operation='save')} - ({increase_in_range(metrics.FREED_BYTES)} or vector(0))",
    "growth",
)
size_by_task = PanelQuery(with_task_name(f"max by ({TASK_LABELS}, kind) ({series(metrics.LAST_SIZE)})"), f"{BY_TASK}: {{{{kind}}}}")
state_growth = PanelQuery(with_task_name(f"{current(metrics.LAST_SIZE, kind='serialized')} / ({SMALLEST_SIZE} > 0)"), BY_TASK)
removals = PanelQuery(increase_per_step(metrics.DELETED_CHECKPOINTS, "operation"), "{{operation}}")
total_removals = PanelQuery(increase_in_range(metrics.DELETED_CHECKPOINTS), "removed")
largest_keys = PanelQuery(f"topk(10, max by (key) ({series(metrics.KEY_SIZE)}))", "{{key}}", "instant")
key_sizes = PanelQuery(f"max by (key) ({series(metrics.KEY_SIZE)})", "{{key}}")

# Observability health
backlog = PanelQuery(f"sum({series(metrics.SPOOL_SIZE)})", "backlog")
backlog_by_instance = PanelQuery(f"sum by (instance) ({series(metrics.SPOOL_SIZE)})", "{{instance}}")
processes_by_state = PanelQuery(f"sum by (state) ({series(metrics.PROCESSES)})", "{{state}}")
live_processes = PanelQuery(f"sum({series(metrics.PROCESSES, state='live')})", "live")
dead_processes = PanelQuery(f"sum({series(metrics.PROCESSES, state='dead')})", "dead")
dropped_records = PanelQuery(increase_in_range(metrics.DROPPED_RECORDS), "dropped")
drops_by_reason = PanelQuery(increase_per_step(metrics.DROPPED_RECORDS, "reason"), "{{reason}}")
delivery_rate = PanelQuery(f"sum by (exporter) (rate({series(metrics.DELIVERED_SPANS)}[$__rate_interval]))", "{{exporter}}")
refused_spans = PanelQuery(increase_per_step(metrics.REFUSED_SPANS, "exporter"), "{{exporter}} refused")
set_aside_spans = PanelQuery(increase_per_step(metrics.SET_ASIDE_SPANS, "exporter"), "{{exporter}} set aside")
retries_by_exporter = PanelQuery(increase_per_step(metrics.RETRIES, "exporter"), "{{exporter}} retries")
total_retries = PanelQuery(f"{increase_in_range(metrics.RETRIES)} or vector(0)", "retries")
recording_fallbacks = PanelQuery(increase_per_step(metrics.RECORDS, "event"), "{{event}}")
internal_errors = PanelQuery(increase_in_range(metrics.FAULTS), "errors")
label_overflow = PanelQuery(increase_per_step(metrics.LABEL_OVERFLOW, "label"), "{{label}}")
versions = PanelQuery(f"count by (job, instance, version) ({series(metrics.BUILD)})", "{{version}}", "table")
