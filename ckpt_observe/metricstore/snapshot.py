"""All metrics at one moment, in the order of the table: the stored sum, what runs now, and zeros where an alert must see the first one.

A counter that first appears as 1 has, for Prometheus, never increased: so as soon as an operation of a task is known, all its outcomes
and error classes are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ckpt_observe.journal.activity import Activity, RunningOperation, read_activity
from ckpt_observe.metricstore.labels import LONGEST
from ckpt_observe.metricstore.points import Counter, Histogram, Point
from ckpt_observe.metricstore.space import free
from ckpt_observe.metricstore.store import FILENAME, MetricStore, Sum
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, metrics
from ckpt_observe.semconv.metrics import LABEL_VALUES, METRICS, OTHER, MetricSpec
from ckpt_observe.semconv.values import ERROR_CLASSES, OPERATIONS, OUTCOMES

Series = dict[tuple[str, ...], Point | float]
Snapshot = list[tuple[MetricSpec, Series]]

_ENDS: Final = (
    ("ok", ""),
    ("skipped", ""),
    ("interrupted", "interrupted"),
    ("cancelled", "cancelled"),
    *(("error", each) for each in ERROR_CLASSES if each not in ("interrupted", "cancelled")),
)


def gather(directory: Path, version: str) -> tuple[Sum, Snapshot]:
    """All metrics of a state directory, from any process and thread. sqlite3.Error or OSError: they cannot be read now."""
    with closing(MetricStore(directory / FILENAME)) as store:
        stored = store.read()
    places = {progress.location for (operation, _), progress in stored.progress.items() if operation == "save"}
    return stored, snapshot(stored, read_activity(directory), version, free(places))


def snapshot(stored: Sum, activity: Activity, version: str, space: Mapping[str, float] = MappingProxyType({})) -> Snapshot:
    """Every metric of the table that has a series, ready to be written in any format. `space` is what is free, by location."""
    found: dict[str, Series] = {name: dict(series) for name, series in stored.points.items()}
    _zeros(found)
    _standing(found, stored)
    _stored(found, stored, space)
    _running(found, stored, activity.running)
    found[metrics.BUILD.name] = {(version,): 1.0}
    found[metrics.PROCESSES.name] = {("live",): float(activity.live_processes), ("dead",): float(activity.dead_processes)}
    found[metrics.SPOOL_SIZE.name] = {(): float(activity.spooled_bytes)}
    return [(spec, found[spec.name]) for spec in METRICS if found.get(spec.name)]


def _zeros(found: dict[str, Series]) -> None:
    def zero(spec: MetricSpec, labels: Iterable[tuple[str, ...]]) -> None:
        series = found.setdefault(spec.name, {})
        for each in labels:
            series.setdefault(each, Counter())

    who = {(operation, *rest) for operation, _, _, *rest in found.get(metrics.OPERATIONS.name, {})}
    tasks = {(operation, rest[-1]) for operation, *rest in who}
    zero(metrics.OPERATIONS, ((operation, *end, *rest) for operation, *rest in who for end in _ENDS))
    for spec in (metrics.CORRUPTION, metrics.ALTERED_KEYS):
        zero(spec, ((operation, task) for operation, task in tasks if operation in ("load", "restore", "verify")))
    for spec in (metrics.DELETED_CHECKPOINTS, metrics.FREED_BYTES):
        zero(spec, ((operation, task) for operation, task in tasks if operation in ("delete", "prune")))
    zero(metrics.TASKS, [(task, outcome) for task, _ in found.get(metrics.TASKS.name, {}) for outcome in OUTCOMES if outcome != "skipped"])
    zero(metrics.DROPPED_RECORDS, ((reason,) for reason in metrics.DROP_REASONS))
    zero(metrics.RECORDS, ((event,) for event in metrics.RECORD_EVENTS))
    zero(metrics.FAULTS, [()])
    zero(metrics.LABEL_OVERFLOW, [("task",)])


def _standing(found: dict[str, Series], stored: Sum) -> None:
    """Gauges of how the operations of each task stand. What never happened has no series: an age since 1970 would be an alarm."""

    def gauge(spec: MetricSpec, labels: tuple[str, ...], value: float) -> None:
        if value:
            found.setdefault(spec.name, {})[labels] = value

    verified: dict[str, float] = {}
    for (operation, task), progress in stored.progress.items():
        labels = (operation, task)
        gauge(metrics.FIRST_ATTEMPT, labels, progress.first_attempt)
        gauge(metrics.LAST_ATTEMPT, labels, progress.last_attempt)
        gauge(metrics.LAST_SUCCESS, labels, progress.last_success)
        gauge(metrics.LAST_ALTERED, labels, progress.altered)
        for failure, moment in progress.told.items():
            gauge(metrics.LAST_FAILURE, (*labels, failure), moment)
        gauge(metrics.LAST_DURATION, labels, progress.duration)
        gauge(metrics.MEMORY_PEAK, labels, progress.memory)
        found.setdefault(metrics.CONSECUTIVE_FAILURES.name, {})[labels] = float(progress.failures)
        if operation == "save":
            gauge(metrics.EXPECTED_INTERVAL, (task,), progress.interval)
            for kind, size in progress.sizes.items():
                gauge(metrics.LAST_SIZE, (kind, task), size)
        verified[task] = max(verified.get(task, 0.0), progress.last_verified)
    for task, moment in verified.items():
        gauge(metrics.LAST_VERIFIED, (task,), moment)


def _stored(found: dict[str, Series], stored: Sum, space: Mapping[str, float]) -> None:
    """What saves keep, of which keys, and how much room is left where they went."""
    kept: dict[tuple[str, ...], float] = {}
    for (kind, operation, task), point in stored.points.get(metrics.SIZE.name, {}).items():
        if (kind, operation) == ("stored", "save") and isinstance(point, Histogram):
            kept[task,] = point.sum
    for (_, task), point in stored.points.get(metrics.FREED_BYTES.name, {}).items():
        if (task,) in kept and isinstance(point, Counter):
            kept[task,] = max(0.0, kept[task,] - point.value)
    found[metrics.KEPT_BYTES.name] = dict(kept)
    saves = {task: progress for (operation, task), progress in stored.progress.items() if operation == "save"}
    found[metrics.KEY_SIZE.name] = {(key, task): size for task, progress in saves.items() for key, size in progress.keys.items()}
    found[metrics.FREE_BYTES.name] = {(task,): space[progress.location] for task, progress in saves.items() if progress.location in space}


def _running(found: dict[str, Series], stored: Sum, running: Iterable[RunningOperation]) -> None:
    named = {task for _, task in stored.progress}
    operations: dict[tuple[str, ...], float] = dict.fromkeys(stored.progress, 0.0)
    tasks: dict[tuple[str, ...], float] = {(task,): 0.0 for task in named}
    oldest: dict[tuple[str, ...], float] = {}
    oldest_tasks: dict[tuple[str, ...], float] = {}
    for each in running:
        task = str(each.attributes.get(names.TASK_NAME) or "")[:LONGEST]
        if task not in named and len(named) > LABEL_VALUES:
            task = OTHER
        named.add(task)
        if each.kind == events.TASK:
            tasks[task,] = tasks.get((task,), 0.0) + 1
            oldest_tasks[task,] = min(oldest_tasks.get((task,), each.start / 1e9), each.start / 1e9)
        else:
            labels = (each.name if each.name in OPERATIONS else OTHER, task)
            operations[labels] = operations.get(labels, 0.0) + 1
            oldest[labels] = min(oldest.get(labels, each.start / 1e9), each.start / 1e9)
    found[metrics.IN_FLIGHT.name] = dict(operations)
    found[metrics.TASKS_IN_FLIGHT.name] = dict(tasks)
    found[metrics.TASKS_OLDEST_START.name] = dict(oldest_tasks)
    found[metrics.OLDEST_START.name] = dict(oldest)
