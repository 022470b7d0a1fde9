"""Every question that a dashboard asks, by name. Names come from the registry, and a label that a metric has not is refused.

Counts over what is shown end with `[$__range]`. Bars over time end with `[$__rate_interval]`: their panels have a shortest step that makes
it one scrape longer than the step, so that no event is lost between two bars and none counted twice. Percentiles, ratios and means end with
`[$window]`, which the reader chooses: checkpoints are too rare for Grafana's own few minutes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import MetricSpec

WHO: Final = "job, task"
"""A task is recovered from its newest checkpoint, whichever instance saved it; tasks of two jobs are two."""
BY_TASK: Final = "{{job}} · {{task}}"
FAILED: Final = "error|interrupted"
LATE: Final = metrics.LATE_AFTER
"""Intervals after which a save is missing, as in the alert: at 2 the next one may just be on its way."""


class Query(NamedTuple):
    """One question. `shape` is `range`, `instant`, `table` (instant, for a table) or `heatmap`."""

    expr: str
    legend: str = ""
    shape: str = "range"
    exemplar: bool = False

    def now(self) -> Query:
        """The same for this moment only."""
        return self._replace(shape="instant")

    def row(self) -> Query:
        """The same as a column of a table."""
        return self._replace(shape="table")


def series(spec: MetricSpec, part: str = "", **wanted: str) -> str:
    """The series of a metric that the reader chose. A wanted value is a regular expression; `part` is `bucket`, `sum` or `count`."""
    unknown = wanted.keys() - set(spec.labels)
    if unknown:
        raise ValueError(f"{spec.name} has no label {', '.join(sorted(unknown))}")
    chosen = {"job": "$job", "instance": "$instance", **({"task": "$task"} if "task" in spec.labels else {}), **wanted}
    matchers = ", ".join(f'{label}=~"{value}"' for label, value in chosen.items())
    return f"{spec.prometheus_name}{part and '_' + part}{{{matchers}}}"


def named(expr: str) -> str:
    """Operations outside of any task have a name, too."""
    return f'label_replace({expr}, "task", "(no task)", "task", "")'


def newest(spec: MetricSpec, **wanted: str) -> str:
    """The highest that anybody says now."""
    return f"max by ({WHO}) ({series(spec, **wanted)})"


def ever(spec: MetricSpec, **wanted: str) -> str:
    """The highest that anybody said last, also one that is gone: of moments, the last one."""
    return f"max by ({WHO}) (last_over_time({series(spec, **wanted)}[$__range]))"


def known(spec: MetricSpec, **wanted: str) -> str:
    """What is said now; where nobody speaks any more, what was said last: what is known of a run outlives its process."""
    return f"({newest(spec, **wanted)} or {ever(spec, **wanted)})"


def mean(spec: MetricSpec, by: str, **wanted: str) -> str:
    total, count = (f"sum by ({by}) (increase({series(spec, part, **wanted)}[$window]))" for part in ("sum", "count"))
    return f"{total} / ({count} > 0)"


def quantile(of: float, spec: MetricSpec, by: str, **wanted: str) -> str:
    return f"histogram_quantile({of}, sum by ({by}, le) (increase({series(spec, 'bucket', **wanted)}[$window])))"


def counted(spec: MetricSpec, by: str, part: str = "", **wanted: str) -> str:
    """How many more in each step, by a label; only where there are any."""
    return f"sum by ({by}) (increase({series(spec, part, **wanted)}[$__rate_interval])) > 0"


def in_range(spec: MetricSpec, part: str = "", **wanted: str) -> str:
    """How many more in all that is shown."""
    return f"sum(increase({series(spec, part, **wanted)}[$__range]))"


SAVED: Final = ever(metrics.LAST_SUCCESS, operation="save")
SINCE_SAVE: Final = f"time() - {SAVED}"
BEGAN: Final = f"min by ({WHO}) ({series(metrics.TASKS_OLDEST_START)})"
HEARD: Final = f"max by ({WHO}) (timestamp({series(metrics.TASKS_OLDEST_START)}))"
"""When it was last scraped or pushed: what saves more often than that is not late in between."""
RUNNING: Final = f"(sum by ({WHO}) ({series(metrics.TASKS_IN_FLIGHT)}) > 0)"
INTERVAL: Final = known(metrics.EXPECTED_INTERVAL)
FAILURES: Final = known(metrics.CONSECUTIVE_FAILURES, operation="save")
LATENESS: Final = f"(({HEARD} - on ({WHO}) ({SAVED} >= on ({WHO}) {BEGAN} or {BEGAN})) / on ({WHO}) {INTERVAL}) and on ({WHO}) {RUNNING}"
"""From the last good save or from the start of the run, whichever is later: yesterday's run is not today's delay."""
NEVER: Final = f"(time() - min by ({WHO}) ({series(metrics.FIRST_ATTEMPT, operation='save')}) unless on ({WHO}) {SAVED})"
AT_RISK: Final = f"(({SINCE_SAVE}) or {NEVER}) and on ({WHO}) {RUNNING}"
FAILING: Final = f"2 * ({FAILURES} > bool 0)"
SILENT: Final = f"(({ever(metrics.TASKS_IN_FLIGHT)} > 0) unless on ({WHO}) {newest(metrics.TASKS_IN_FLIGHT)}) * 0 - 1"
"""It ran when last heard of, and nobody speaks for it now."""

age = Query(named(SINCE_SAVE), BY_TASK)
interval = Query(named(INTERVAL), f"{BY_TASK}: expected")
lateness = Query(named(LATENESS), BY_TASK)
most_late = Query(f"max({LATENESS})", "of the interval")
oldest_save = Query(f"max({SINCE_SAVE})", "age")
at_risk = Query(f"max({AT_RISK})", "work at risk")
failures = Query(named(FAILURES), BY_TASK)
most_failures = Query(f"max({FAILURES})", "failures")
success_ratio = Query(
    f"{in_range(metrics.OPERATIONS, operation='save', outcome='ok')}"
    f" / ({in_range(metrics.OPERATIONS, operation='save', outcome='ok|' + FAILED)} > 0)",
    "good saves",
)
in_flight = Query(f"sum({series(metrics.IN_FLIGHT)})", "in flight")
in_flight_age = Query(f"max(time() - {series(metrics.OLDEST_START)})", "oldest")
in_flight_by_task = Query(named(f"max by ({WHO}) (time() - {series(metrics.OLDEST_START)})"), BY_TASK)
kept_in_all = Query(f"sum({series(metrics.KEPT_BYTES)}) or sum(last_over_time({series(metrics.KEPT_BYTES)}[$__range]))", "kept")
oldest_verified = Query(f"max(time() - {ever(metrics.LAST_VERIFIED)})", "age")
verified = Query(named(f"time() - {ever(metrics.LAST_VERIFIED)}"), BY_TASK)
damaged = Query(in_range(metrics.CORRUPTION), "damaged")
died = Query(in_range(metrics.OPERATIONS, outcome="interrupted"), "interrupted")
standing = Query(named(f"({SILENT}) or ({FAILING} + on ({WHO}) (({LATENESS}) > bool {LATE})) or ({FAILING})"), BY_TASK)
tasks_running = Query(named(f"sum by ({WHO}) ({series(metrics.TASKS_IN_FLIGHT)})"), BY_TASK)
saved_size = Query(named(known(metrics.LAST_SIZE, kind="stored")), BY_TASK)

outcomes = Query(counted(metrics.OPERATIONS, "operation, outcome", operation="$operation"), "{{operation}} {{outcome}}")
errors = Query(counted(metrics.OPERATIONS, "job, error_class", operation="$operation", outcome=FAILED), "{{job}} · {{error_class}}")
saves_by_outcome = Query(counted(metrics.OPERATIONS, "job, outcome", operation="save"), "{{job}} · {{outcome}}")
percentiles = tuple(
    Query(
        quantile(of, metrics.OPERATION_DURATION, "operation", operation="$operation"),
        f"{{{{operation}}}} p{of * 100:.0f}",
        exemplar=of == 0.99,
    )
    for of in (0.5, 0.95, 0.99)
)
durations = Query(
    f"sum by (le) (increase({series(metrics.OPERATION_DURATION, 'bucket', operation='$operation')}[$__rate_interval]))",
    "{{le}}",
    "heatmap",
    exemplar=True,
)
phases = Query(
    f"sum by (phase) (increase({series(metrics.PHASE_DURATION, 'sum', operation='$operation')}[$window])) / ignoring (phase) group_left ()"
    f" (sum(increase({series(metrics.OPERATION_DURATION, 'count', operation='$operation', task='.*')}[$window])) > 0)",
    "{{phase}}",
)
throughput = Query(mean(metrics.THROUGHPUT, "operation", operation="$operation"), "{{operation}}")
sizes = Query(mean(metrics.SIZE, "kind", operation="$operation"), "{{kind}}")
ratio = Query(named(mean(metrics.RATIO, WHO)), BY_TASK)
last_durations = Query(
    named(f"max by ({WHO}, operation) ({series(metrics.LAST_DURATION, operation='$operation')})"), f"{BY_TASK}: {{{{operation}}}}"
)
lost_work = Query(named(counted(metrics.RESTORE_AGE, WHO, "sum")), BY_TASK)
task_runs = Query(counted(metrics.TASKS, "outcome"), "{{outcome}}")
cpu = Query(f"sum by (phase) (increase({series(metrics.PHASE_CPU_TIME, operation='$operation')}[$window]))", "{{phase}}")
disk = Query(f"sum by (direction) (increase({series(metrics.IO, operation='$operation')}[$window]))", "{{direction}}")
memory = Query(named(newest(metrics.MEMORY_PEAK, operation="$operation")), BY_TASK)

kept = Query(named(f"sum by ({WHO}) ({series(metrics.KEPT_BYTES)})"), BY_TASK)
free = Query(named(f"min by ({WHO}) ({series(metrics.FREE_BYTES)})"), BY_TASK)
TREND: Final = f"{series(metrics.FREE_BYTES)} offset $window"
"""A trend is told where the whole window is known: of the first minute it would be a guess."""
free_tomorrow = Query(
    named(f"min by ({WHO}) (predict_linear({series(metrics.FREE_BYTES)}[$window], 86400) and {TREND})"), f"{BY_TASK}: in a day"
)
least_free = Query(f"min({series(metrics.FREE_BYTES)})", "free")
full_in = Query(f"min({series(metrics.FREE_BYTES)} / -(deriv({series(metrics.FREE_BYTES)}[$window]) < 0 and {TREND}))", "until full")
room = Query(f"min(min by ({WHO}) ({series(metrics.FREE_BYTES)}) / on ({WHO}) ({newest(metrics.LAST_SIZE, kind='stored')} > 0))", "saves")
bytes_saved = Query(f"sum(increase({series(metrics.SIZE, 'sum', kind='stored', operation='save')}[$__rate_interval]))", "saved")
bytes_freed = Query(f"-sum(increase({series(metrics.FREED_BYTES)}[$__rate_interval]))", "removed")
growth = Query(
    f"{in_range(metrics.SIZE, 'sum', kind='stored', operation='save')} - ({in_range(metrics.FREED_BYTES)} or vector(0))",
    "more kept",
)
sizes_by_task = Query(named(f"max by ({WHO}, kind) ({series(metrics.LAST_SIZE)})"), f"{BY_TASK}: {{{{kind}}}}")
SMALLEST: Final = f"max by ({WHO}) (min_over_time({series(metrics.LAST_SIZE, kind='serialized')}[$__range]))"
state_growth = Query(named(f"{newest(metrics.LAST_SIZE, kind='serialized')} / ({SMALLEST} > 0)"), BY_TASK)
removed = Query(counted(metrics.DELETED_CHECKPOINTS, "operation"), "{{operation}}")
removed_in_all = Query(in_range(metrics.DELETED_CHECKPOINTS), "removed")
largest_keys = Query(f"topk(10, max by (key) ({series(metrics.KEY_SIZE)}))", "{{key}}", "instant")
keys = Query(f"max by (key) ({series(metrics.KEY_SIZE)})", "{{key}}")

waiting = Query(f"sum({series(metrics.SPOOL_SIZE)})", "waiting")
waiting_by_instance = Query(f"sum by (instance) ({series(metrics.SPOOL_SIZE)})", "{{instance}}")
processes = Query(f"sum by (state) ({series(metrics.PROCESSES)})", "{{state}}")
living = Query(f"sum({series(metrics.PROCESSES, state='live')})", "live")
left_behind = Query(f"sum({series(metrics.PROCESSES, state='dead')})", "dead")
lost = Query(in_range(metrics.DROPPED_RECORDS), "lost")
dropped = Query(counted(metrics.DROPPED_RECORDS, "reason"), "{{reason}}")
delivered = Query(f"sum by (exporter) (rate({series(metrics.DELIVERED_SPANS)}[$__rate_interval]))", "{{exporter}}")
refused = Query(counted(metrics.REFUSED_SPANS, "exporter"), "{{exporter}} refused")
retries = Query(counted(metrics.RETRIES, "exporter"), "{{exporter}} tried again")
retried = Query(f"{in_range(metrics.RETRIES)} or vector(0)", "retries")
records = Query(counted(metrics.RECORDS, "event"), "{{event}}")
faults = Query(in_range(metrics.FAULTS), "faults")
overflow = Query(counted(metrics.LABEL_OVERFLOW, "label"), "{{label}}")
versions = Query(f"count by (job, instance, version) ({series(metrics.BUILD)})", "{{version}}", "table")
