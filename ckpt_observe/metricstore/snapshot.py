"""All metrics at one moment, in the order of `semconv.metrics.METRICS`: the stored totals, what runs now, and zeros.

A counter that first appears with the value 1 has never increased as far as Prometheus can tell. As soon as an operation of a task has been
counted, every outcome and error class therefore has a series, with the value 0 if needed, so that an alert sees the first failure. The same
holds for damage and altered keys, which any operation that reads may find.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeAlias

from ckpt_observe.journal.activity import Activity, RunningOperation, read_activity
from ckpt_observe.metricstore.free_space import free_bytes
from ckpt_observe.metricstore.labels import MAX_LENGTH
from ckpt_observe.metricstore.metric_store import FILENAME, MetricStore, StoredMetrics
from ckpt_observe.metricstore.points import Counter, Histogram, Point
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, metrics
from ckpt_observe.semconv.metrics import LABEL_VALUES, METRICS, OTHER, MetricSpec
from ckpt_observe.semconv.values import ERROR_CLASSES, OPERATIONS, OUTCOMES

Series: TypeAlias = dict[tuple[str, ...], Point | float]
"""The points of one metric by label values. Gauges are plain floats."""
Snapshot: TypeAlias = list[tuple[MetricSpec, Series]]

_READS: Final = ("load", "restore", "verify", "drill")
_OUTCOMES_WITH_CLASS: Final = (
    ("ok", ""),
    ("skipped", ""),
    ("interrupted", "interrupted"),
    ("cancelled", "cancelled"),
    *(("error", each) for each in ERROR_CLASSES if each not in ("interrupted", "cancelled")),
)


def gather(directory: Path, version: str) -> tuple[StoredMetrics, Snapshot]:
    """Return the stored metrics of a state directory and the snapshot of all metrics. `version` is that of ckpt_observe.

    May be called in any process and thread. sqlite3.Error or OSError if the metrics cannot be read now.
    """
    with closing(MetricStore(directory / FILENAME)) as store:
        stored = store.read()
    locations = {status.location for (operation, _), status in stored.statuses.items() if operation == "save"}
    return stored, build_snapshot(stored, read_activity(directory), version, free_bytes(locations))


def build_snapshot(stored: StoredMetrics, activity: Activity, version: str, space: Mapping[str, float] = MappingProxyType({})) -> Snapshot:
    """Return every metric that has a series. `space` is the free space in bytes by location."""
    series: dict[str, Series] = {name: dict(points) for name, points in stored.points.items()}
    _add_zeros(series)
    _add_statuses(series, stored)
    _add_storage(series, stored, space)
    _add_running(series, stored, activity.running)
    series[metrics.BUILD.name] = {(version,): 1.0}
    series[metrics.PROCESSES.name] = {("live",): float(activity.live_processes), ("dead",): float(activity.dead_processes)}
    series[metrics.SPOOL_SIZE.name] = {(): float(activity.waiting_bytes)}
    return [(spec, series[spec.name]) for spec in METRICS if series.get(spec.name)]


def _add_zeros(series: dict[str, Series]) -> None:
    def add(spec: MetricSpec, labels: Iterable[tuple[str, ...]]) -> None:
        points = series.setdefault(spec.name, {})
        for each in labels:
            points.setdefault(each, Counter())

    origins = {(operation, *rest) for operation, _, _, *rest in series.get(metrics.OPERATIONS.name, {})}
    tasks = {(operation, rest[-1]) for operation, *rest in origins}
    add(metrics.OPERATIONS, ((operation, *end, *rest) for operation, *rest in origins for end in _OUTCOMES_WITH_CLASS))
    for spec in (metrics.CORRUPTION, metrics.ALTERED_KEYS):  # of tasks that only saved, too: their first restore may be the one that fails
        add(spec, ((operation, task) for operation in _READS for _, task in tasks))
    for spec in (metrics.DELETED_CHECKPOINTS, metrics.FREED_BYTES):
        add(spec, ((operation, task) for operation, task in tasks if operation in ("delete", "prune")))
    add(metrics.TASKS, [(task, outcome) for task, _ in series.get(metrics.TASKS.name, {}) for outcome in OUTCOMES if outcome != "skipped"])
    add(metrics.DROPPED_RECORDS, ((reason,) for reason in metrics.DROP_REASONS))
    add(metrics.RECORDS, ((event,) for event in metrics.RECORD_EVENTS))
    add(metrics.FAULTS, [()])
    add(metrics.LABEL_OVERFLOW, [("task",)])


def _add_statuses(series: dict[str, Series], stored: StoredMetrics) -> None:
    """Add the gauges of each operation and task. A time of 0 (never) gets no series: its age, counted from 1970, would raise an alert."""

    def add(spec: MetricSpec, labels: tuple[str, ...], value: float) -> None:
        if value:
            series.setdefault(spec.name, {})[labels] = value

    verified: dict[str, float] = {}
    for (operation, task), status in stored.statuses.items():
        labels = (operation, task)
        add(metrics.FIRST_ATTEMPT, labels, status.first_attempt)
        add(metrics.LAST_ATTEMPT, labels, status.last_attempt)
        add(metrics.LAST_SUCCESS, labels, status.last_success)
        add(metrics.LAST_ALTERED, labels, status.last_altered)
        for error_class, time in status.last_detected.items():
            add(metrics.LAST_FAILURE, (*labels, error_class), time)
        add(metrics.LAST_DURATION, labels, status.duration)
        add(metrics.MEMORY_PEAK, labels, status.peak_memory)
        series.setdefault(metrics.CONSECUTIVE_FAILURES.name, {})[labels] = float(status.consecutive_failures)
        if operation == "save":
            add(metrics.EXPECTED_INTERVAL, (task,), status.interval)
            for kind, size in status.sizes.items():
                add(metrics.LAST_SIZE, (kind, task), size)
        verified[task] = max(verified.get(task, 0.0), status.last_verified)
    for task, time in verified.items():
        add(metrics.LAST_VERIFIED, (task,), time)


def _add_storage(series: dict[str, Series], stored: StoredMetrics, space: Mapping[str, float]) -> None:
    """Add, for each task, the bytes in the store, the sizes of the largest keys, and the free space at the location of its saves."""
    stored_bytes: dict[tuple[str, ...], float] = {}
    for (kind, operation, task), point in stored.points.get(metrics.SIZE.name, {}).items():
        if (kind, operation) == ("stored", "save") and isinstance(point, Histogram):
            stored_bytes[task,] = point.sum
    for (_, task), point in stored.points.get(metrics.FREED_BYTES.name, {}).items():
        if (task,) in stored_bytes and isinstance(point, Counter):
            stored_bytes[task,] = max(0.0, stored_bytes[task,] - point.value)
    series[metrics.KEPT_BYTES.name] = dict(stored_bytes)
    saves = {task: status for (operation, task), status in stored.statuses.items() if operation == "save"}
    series[metrics.KEY_SIZE.name] = {(key, task): size for task, status in saves.items() for key, size in status.key_sizes.items()}
    series[metrics.FREE_BYTES.name] = {(task,): space[status.location] for task, status in saves.items() if status.location in space}


def _add_running(series: dict[str, Series], stored: StoredMetrics, running: Iterable[RunningOperation]) -> None:
    """Add how many operations and tasks run now and when the oldest began. If none of a known kind runs, its number is 0."""
    task_names = {task for _, task in stored.statuses}
    operations: dict[tuple[str, ...], float] = dict.fromkeys(stored.statuses, 0.0)
    tasks: dict[tuple[str, ...], float] = {(task,): 0.0 for task in task_names}
    oldest_operations: dict[tuple[str, ...], float] = {}
    oldest_tasks: dict[tuple[str, ...], float] = {}
    for each in running:
        task = str(each.attributes.get(names.TASK_NAME) or "")[:MAX_LENGTH]
        if task not in task_names and len(task_names) > LABEL_VALUES:
            task = OTHER
        task_names.add(task)
        start = each.start / 1e9
        if each.kind == events.TASK:
            tasks[task,] = tasks.get((task,), 0.0) + 1
            oldest_tasks[task,] = min(oldest_tasks.get((task,), start), start)
        else:
            labels = (each.name if each.name in OPERATIONS else OTHER, task)
            operations[labels] = operations.get(labels, 0.0) + 1
            oldest_operations[labels] = min(oldest_operations.get(labels, start), start)
    series[metrics.IN_FLIGHT.name] = dict(operations)
    series[metrics.TASKS_IN_FLIGHT.name] = dict(tasks)
    series[metrics.TASKS_OLDEST_START.name] = dict(oldest_tasks)
    series[metrics.OLDEST_START.name] = dict(oldest_operations)
