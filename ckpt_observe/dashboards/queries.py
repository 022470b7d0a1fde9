"""Every PromQL query of the dashboards, by name.

Totals over the time range end with `[$__range]`. Bars over time end with `[$__rate_interval]`; their panels have a minimum step that makes
it one scrape longer than the step, so that no event is lost between two bars or counted twice. Percentiles, ratios and means end with
`[$window]`, which the user chooses, because checkpoints are too rare for Grafana's default interval. Graphs with a line per task, job or
instance show the `LINES` that matter most at the end of the time range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ckpt_observe.dashboards.promql import (
    LINES,
    TASK_LABELS,
    PanelQuery,
    current,
    current_or_last,
    highest,
    increase_in_range,
    increase_per_step,
    last_known,
    mean,
    quantile,
    series,
    with_task_name,
)
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import MetricSpec

BY_TASK: Final = "{{job}} · {{task}}"
INSTANCE: Final = "job, instance"
BY_INSTANCE: Final = "{{job}} · {{instance}}"
FAILED: Final = "error|interrupted"
NOT_FAILED: Final = "ok|skipped|cancelled"
LATE: Final = metrics.LATE_AFTER
"""Number of intervals after which a save is late, as in the alert. At 2 the next save may be about to finish."""

LAST_SAVE: Final = last_known(metrics.LAST_SUCCESS, operation="save")
RUN_START: Final = f"min by ({TASK_LABELS}) ({series(metrics.TASKS_OLDEST_START)})"
LAST_SCRAPE: Final = f"max by ({TASK_LABELS}) (timestamp({series(metrics.TASKS_OLDEST_START)}))"
"""Time of the last scrape or push. A task that saves more often than it is scraped must not look late between two scrapes."""
SAVE_AGE: Final = f"clamp_min({LAST_SCRAPE} - on ({TASK_LABELS}) {LAST_SAVE}, 0) or time() - {LAST_SAVE}"
"""Time since the last good save: at the last scrape while the task runs, so that it fits the lateness, and now otherwise."""
RUNNING: Final = f"(sum by ({TASK_LABELS}) ({series(metrics.TASKS_IN_FLIGHT)}) > 0)"
INTERVAL: Final = current_or_last(metrics.EXPECTED_INTERVAL)
FAILURES: Final = current_or_last(metrics.CONSECUTIVE_FAILURES, operation="save")
WORK_AT_RISK: Final = (
    f"clamp_min({LAST_SCRAPE} - on ({TASK_LABELS}) ({LAST_SAVE} >= on ({TASK_LABELS}) {RUN_START} or {RUN_START}), 0)"
    f" and on ({TASK_LABELS}) {RUNNING}"
)
"""Time since the last good save, or since the start of the run if that is later: what came before is lost already, or not of this run."""
LATENESS: Final = f"({WORK_AT_RISK}) / on ({TASK_LABELS}) {INTERVAL}"
FAILING: Final = f"2 * ({FAILURES} > bool 0)"
SILENT: Final = f"(({last_known(metrics.TASKS_IN_FLIGHT)} > 0) unless on ({TASK_LABELS}) {current(metrics.TASKS_IN_FLIGHT)}) * 0 - 1"
"""-1 for each task that was running when its metrics were last seen, and that has no metrics now."""
READ: Final = {"operation": "load|restore|verify|drill"}


def _failed_reads(value: Callable[..., str]) -> str:
    """Return an expression for the failed reads since the last good one of each task; `value` is `current` or `last_known`.

    As in the alert: of the worst instance and operation, and 0 if all failures were `not_found`, as in the first run of a task.
    """
    by = f"instance, {TASK_LABELS}, operation"
    by_class = f"{by}, error_class"
    failures, success = (value(spec, by, **READ) for spec in (metrics.CONSECUTIVE_FAILURES, metrics.LAST_SUCCESS))
    failure, not_found = (value(metrics.LAST_FAILURE, by_class, **READ, **each) for each in ({}, {"error_class": "not_found"}))
    none = f"0 * {failures}"
    return f"max by ({TASK_LABELS}) ({failures} and max by ({by}) ({failure} unless {not_found}) > ({success} or {none}) or {none})"


def _altered_state(value: Callable[..., str]) -> str:
    """Return an expression that is 1 for each task that read back an altered state, and none correctly since, and 0 for others that read.

    As in the alert, it compares times: an increase of the altered keys would miss those that the first read of an instance finds.
    """
    by = f"instance, {TASK_LABELS}"
    altered, verified = (value(spec, by) for spec in (metrics.LAST_ALTERED, metrics.LAST_VERIFIED))
    none = f"0 * {value(metrics.CONSECUTIVE_FAILURES, by, **READ)}"
    return f"max by ({TASK_LABELS}) ({altered} > bool ({verified} or 0 * {altered}) or {none})"


FAILED_READS: Final = f"({_failed_reads(current)} or {_failed_reads(last_known)})"
ALTERED_STATE: Final = f"({_altered_state(current)} or {_altered_state(last_known)})"

# Overview
save_age = PanelQuery(with_task_name(SAVE_AGE), BY_TASK)
save_age_by_job = PanelQuery(highest(f"max by (job) ({SAVE_AGE})", "job"), "{{job}}")
expected_interval = PanelQuery(with_task_name(INTERVAL), BY_TASK)
lateness = PanelQuery(with_task_name(LATENESS), BY_TASK)
lateness_by_job = PanelQuery(highest(f"max by (job) ({LATENESS})", "job"), "{{job}}")
max_lateness = PanelQuery(f"max({LATENESS})", "of the interval")
max_save_age = PanelQuery(f"max({SAVE_AGE})", "age")
work_at_risk = PanelQuery(f"max({WORK_AT_RISK})", "work at risk")
work_at_risk_by_task = PanelQuery(with_task_name(WORK_AT_RISK), BY_TASK)
consecutive_failures = PanelQuery(with_task_name(FAILURES), BY_TASK)
max_consecutive_failures = PanelQuery(f"max({FAILURES})", "failures")
failed_reads = PanelQuery(with_task_name(FAILED_READS), BY_TASK)
max_failed_reads = PanelQuery(f"max({FAILED_READS})", "failed reads")
altered_states = PanelQuery(f"sum({ALTERED_STATE})", "tasks")
success_ratio = PanelQuery(
    f"{increase_in_range(metrics.OPERATIONS, operation='save', outcome='ok')}"
    f" / ({increase_in_range(metrics.OPERATIONS, operation='save', outcome='ok|' + FAILED)} > 0)",
    "successful saves",
)
operations_in_flight = PanelQuery(f"sum({series(metrics.IN_FLIGHT)})", "in flight")
oldest_in_flight = PanelQuery(f"max(time() - {series(metrics.OLDEST_START)})", "oldest")
in_flight_by_task = PanelQuery(with_task_name(f"max by ({TASK_LABELS}) (time() - {series(metrics.OLDEST_START)})"), BY_TASK)
storage_used = PanelQuery(f"(sum({series(metrics.KEPT_BYTES)}) or sum(last_over_time({series(metrics.KEPT_BYTES)}[$__range])))", "used")
max_verified_age = PanelQuery(f"max(time() - {last_known(metrics.LAST_VERIFIED)})", "age")
verified_age = PanelQuery(with_task_name(f"time() - {last_known(metrics.LAST_VERIFIED)}"), BY_TASK)
corruption = PanelQuery(increase_in_range(metrics.CORRUPTION), "corrupted")
interruptions = PanelQuery(increase_in_range(metrics.OPERATIONS, outcome="interrupted"), "interrupted")
SAVE_STATE: Final = f"({SILENT}) or ({FAILING} + on ({TASK_LABELS}) (({LATENESS}) > bool {LATE})) or ({FAILING})"
save_state = PanelQuery(with_task_name(SAVE_STATE), BY_TASK)
MOST_FAILURES: Final = f"max by ({TASK_LABELS}) (max_over_time({series(metrics.CONSECUTIVE_FAILURES, operation='save')}[$__range]))"
save_state_history = PanelQuery(
    with_task_name(highest(SAVE_STATE, rank=f"({SAVE_STATE}) + on ({TASK_LABELS}) (1 - 1 / (1 + {MOST_FAILURES}))")), BY_TASK
)
"""Of two tasks in the same state, the one that had more failures in the time range is shown."""
running_tasks = PanelQuery(with_task_name(f"sum by ({TASK_LABELS}) ({series(metrics.TASKS_IN_FLIGHT)})"), BY_TASK)
last_size = PanelQuery(with_task_name(current_or_last(metrics.LAST_SIZE, kind="stored")), BY_TASK)

# Operations
OPERATION: Final = {"operation": "$operation"}
TASK_OPERATION: Final = f"{TASK_LABELS}, operation"


def per_operation(spec: MetricSpec, by: str) -> str:
    """Return an expression for the increase of a counter per operation in the window, by the label `by`. Phases are not known by task."""
    every_task = {} if "task" in spec.labels else {"task": ".*"}
    count = f"sum(increase({series(metrics.OPERATION_DURATION, 'count', **OPERATION, **every_task)}[$window]))"
    part = "sum" if spec.instrument == "histogram" else ""
    return f"sum by ({by}) (increase({series(spec, part, **OPERATION)}[$window])) / on () group_left () ({count} > 0)"


def _async_percentile(spec: MetricSpec, legend: str) -> PanelQuery:
    return PanelQuery(quantile(0.95, spec), legend)


def _async_percentile_by_task(spec: MetricSpec) -> PanelQuery:
    return PanelQuery(with_task_name(quantile(0.95, spec, TASK_LABELS, "[$__range]")), BY_TASK)


def _saves_by_outcome(outcomes: str) -> str:
    """Return an expression for the saves with these outcomes in each step, by job and outcome: the most frequent ones."""
    by, saves = "job, outcome", {"operation": "save", "outcome": outcomes}
    rank = increase_in_range(metrics.OPERATIONS, by=by, **saves)
    return highest(increase_per_step(metrics.OPERATIONS, by, **saves), by, rank)


outcomes = PanelQuery(increase_per_step(metrics.OPERATIONS, "outcome", **OPERATION), "{{outcome}}")
operation_counts = PanelQuery(increase_per_step(metrics.OPERATIONS, "operation", **OPERATION), "{{operation}}")
errors = PanelQuery(
    highest(
        increase_per_step(metrics.OPERATIONS, "job, error_class", **OPERATION, outcome=FAILED),
        "job, error_class",
        increase_in_range(metrics.OPERATIONS, by="job, error_class", **OPERATION, outcome=FAILED),
    ),
    "{{job}} · {{error_class}}",
)
saves_by_outcome = PanelQuery(f"{_saves_by_outcome(FAILED)} or {_saves_by_outcome(NOT_FAILED)}", "{{job}} · {{outcome}}")
"""Failed saves are ranked by themselves: among all saves, those of many healthy jobs would displace them."""
save_percentiles = tuple(
    PanelQuery(quantile(of, metrics.OPERATION_DURATION, operation="save"), f"p{of * 100:.0f}") for of in (0.5, 0.95, 0.99)
)
p95_by_operation = PanelQuery(quantile(0.95, metrics.OPERATION_DURATION, "operation", **OPERATION), "{{operation}}")
traces_by_duration = (
    PanelQuery(quantile(1, metrics.OPERATION_DURATION, **OPERATION), "slowest", exemplar=True),
    PanelQuery(quantile(0.5, metrics.OPERATION_DURATION, **OPERATION), "p50"),
)
"""The slowest is there for the axis: Grafana draws exemplars above the highest line at its height."""
duration_heatmap = PanelQuery(
    f"sum by (le) (increase({series(metrics.OPERATION_DURATION, 'bucket', **OPERATION)}[$__rate_interval]))", "{{le}}", "heatmap"
)
phase_times = PanelQuery(per_operation(metrics.PHASE_DURATION, "phase"), "{{phase}}")
task_percentiles = tuple(
    PanelQuery(with_task_name(quantile(of, metrics.OPERATION_DURATION, TASK_OPERATION, "[$__range]", **OPERATION))) for of in (0.95, 0.5)
)
task_last_duration = PanelQuery(with_task_name(last_known(metrics.LAST_DURATION, TASK_OPERATION, **OPERATION)))
task_operations = PanelQuery(with_task_name(f"{increase_in_range(metrics.OPERATIONS, by=TASK_OPERATION, **OPERATION)} > 0"))
async_percentiles = tuple(
    _async_percentile(spec, legend)
    for spec, legend in (
        (metrics.ASYNC_BLOCKED, "blocked"),
        (metrics.ASYNC_RELEASED, "released"),
        (metrics.ASYNC_PENDING, "pending"),
        (metrics.ASYNC_DURABLE, "durable"),
    )
)
async_blocked, async_released, async_pending, async_durable = (
    _async_percentile_by_task(spec)
    for spec in (metrics.ASYNC_BLOCKED, metrics.ASYNC_RELEASED, metrics.ASYNC_PENDING, metrics.ASYNC_DURABLE)
)
STRAGGLERS_BY: Final = "job, phase"
STRAGGLERS: Final = increase_in_range(metrics.STRAGGLER_DELAY, "sum", STRAGGLERS_BY)
stragglers, straggler_delay = (
    PanelQuery(highest(increase_per_step(metrics.STRAGGLER_DELAY, STRAGGLERS_BY, part), STRAGGLERS_BY, STRAGGLERS), "{{job}} · {{phase}}")
    for part in ("count", "sum")
)
throughput = PanelQuery(mean(metrics.THROUGHPUT, "operation", **OPERATION), "{{operation}}")
mean_size = PanelQuery(mean(metrics.SIZE, "kind", **OPERATION), "{{kind}}")
compression_ratio = PanelQuery(with_task_name(mean(metrics.RATIO, TASK_LABELS, "[$__range]")))
lost_work = PanelQuery(
    with_task_name(
        highest(
            increase_per_step(metrics.RESTORE_AGE, TASK_LABELS, "sum"),
            rank=increase_in_range(metrics.RESTORE_AGE, "sum", TASK_LABELS),
        )
    ),
    BY_TASK,
)
task_runs = PanelQuery(increase_per_step(metrics.TASKS, "outcome"), "{{outcome}}")
cpu_time = PanelQuery(per_operation(metrics.PHASE_CPU_TIME, "phase"), "{{phase}}")
disk_io = PanelQuery(per_operation(metrics.IO, "direction"), "{{direction}}")
peak_memory = PanelQuery(highest(f"max by ({INSTANCE}) ({series(metrics.MEMORY_PEAK, **OPERATION)})", INSTANCE), BY_INSTANCE)

# Storage
FREE: Final = series(metrics.FREE_BYTES)
SHRINKAGE: Final = f"({FREE} offset $window - {FREE})"
"""Bytes by which free space has shrunk in the last window. Without data a window ago there is none: it would be a guess."""
WINDOW_SECONDS: Final = f"(timestamp({FREE}) - timestamp({FREE} offset $window))"
YEAR: Final = 365 * 86400
STORED: Final = series(metrics.KEPT_BYTES)
GROWTH: Final = (
    f"{mean(metrics.SIZE, TASK_LABELS, kind='serialized', operation='save')}"
    f" / on ({TASK_LABELS}) ({mean(metrics.SIZE, TASK_LABELS, '[$window] offset $window', kind='serialized', operation='save')}) - 1"
)
storage_used_by_task = PanelQuery(with_task_name(highest(f"sum by ({TASK_LABELS}) ({STORED})")), BY_TASK)
free_space = PanelQuery(highest(f"min by ({INSTANCE}) ({FREE})", INSTANCE, function="bottomk"), BY_INSTANCE)
free_space_forecast = PanelQuery(
    highest(f"min by ({INSTANCE}) ({FREE} - clamp_min({SHRINKAGE}, 0))", INSTANCE, f"min by ({INSTANCE}) ({FREE})", "bottomk"),
    f"{BY_INSTANCE} in $window",
)
min_free_space = PanelQuery(f"min({FREE})", "free")
time_until_full = PanelQuery(f"min({FREE} / ({SHRINKAGE} > 0) * {WINDOW_SECONDS}) < {YEAR}", "until full")
saves_that_fit = PanelQuery(
    f"min(min by ({TASK_LABELS}) ({FREE}) / on ({TASK_LABELS}) ({current(metrics.LAST_SIZE, kind='stored')} > 0))", "saves"
)
bytes_saved = PanelQuery(f"sum(increase({series(metrics.SIZE, 'sum', kind='stored', operation='save')}[$__rate_interval]))", "saved")
bytes_removed = PanelQuery(f"-sum(increase({series(metrics.FREED_BYTES)}[$__rate_interval]))", "removed")
growth = PanelQuery(f"{storage_used.expr} - (sum({STORED} offset $__range) or vector(0))", "growth")
size_by_task = PanelQuery(with_task_name(highest(current(metrics.LAST_SIZE, kind="stored"))), BY_TASK)
state_growth = PanelQuery(with_task_name(highest(GROWTH, rank=current(metrics.LAST_SIZE, kind="serialized"))), BY_TASK)
removals = PanelQuery(increase_per_step(metrics.DELETED_CHECKPOINTS, "operation"), "{{operation}}")
total_removals = PanelQuery(increase_in_range(metrics.DELETED_CHECKPOINTS), "removed")
KEY_SIZES: Final = f"max by (key) ({series(metrics.KEY_SIZE)})"
largest_keys = PanelQuery(f"topk({LINES}, {KEY_SIZES})", "{{key}}", "instant")
key_sizes = PanelQuery(highest(KEY_SIZES, "key"), "{{key}}")

# Observability health
backlog = PanelQuery(f"sum({series(metrics.SPOOL_SIZE)})", "backlog")
backlog_by_instance = PanelQuery(highest(f"sum by ({INSTANCE}) ({series(metrics.SPOOL_SIZE)})", INSTANCE), BY_INSTANCE)
processes_by_state = PanelQuery(f"sum by (state) ({series(metrics.PROCESSES)})", "{{state}}")
live_processes = PanelQuery(f"sum({series(metrics.PROCESSES, state='live')})", "live")
dead_processes = PanelQuery(f"sum({series(metrics.PROCESSES, state='dead')})", "dead")
dropped_records = PanelQuery(
    f"{increase_in_range(metrics.DROPPED_RECORDS)} + ({increase_in_range(metrics.REFUSED_SPANS)} or vector(0))", "dropped"
)
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
