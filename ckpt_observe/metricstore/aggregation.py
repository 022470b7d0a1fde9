"""Adds up one batch of spans in memory: counters, histograms and attempts.

The spans of an operation arrive in one batch, its phases before the operation itself. A phase is therefore assigned to the operation that
follows it, even if its parent is a span of another library.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from msgspec import UNSET

from ckpt_observe.metricstore.operation_status import FAILURE_OUTCOMES, Attempt
from ckpt_observe.metricstore.points import Counter, Exemplar, HistogramBuilder
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import LARGEST_KEYS, OTHER, MetricSpec
from ckpt_observe.span import Span

SeriesKey: TypeAlias = tuple[str, tuple[str, ...]]
"""The name of a metric and its label values, in the order of its spec."""
LimitLabel: TypeAlias = Callable[[str, Any], str]
"""Takes the name of a label and a raw value, and returns a label value from a bounded set."""
SpanGroup: TypeAlias = tuple[Span, list[Span]]
"""An operation or task, and its phases."""

_SIZES: Final = (("state", names.SIZE_STATE), ("serialized", names.SIZE_SERIALIZED), ("stored", names.SIZE_STORED))
_ASYNC_TIMES: Final = (
    (metrics.ASYNC_BLOCKED, names.ASYNC_BLOCKED),
    (metrics.ASYNC_RELEASED, names.ASYNC_RELEASED),
    (metrics.ASYNC_DURABLE, names.ASYNC_DURABLE),
)
_AGE_METRICS: Final = {"load": metrics.RESTORE_AGE, "restore": metrics.RESTORE_AGE, "drill": metrics.DRILL_AGE}
"""Operations that read a checkpoint, and the metric for its age."""
_MAX_AMOUNT: Final = 1e300
"""Values from here on are ignored: infinity, and integers too large for a float."""


def group_spans(spans: Iterable[Span]) -> Iterator[SpanGroup]:
    """Yield each operation or task with its phases: the phases of the same trace that come directly before it."""
    phases: list[Span] = []
    for span in spans:
        if names.PHASE in span.attributes:
            phases.append(span)
        else:
            yield span, [phase for phase in phases if phase.trace_id == span.trace_id]
            phases = []


class BatchAggregator:
    """Adds up a batch that became known at `now` (Unix seconds)."""

    def __init__(self, limit_label: LimitLabel, now: float) -> None:
        self._limit_label, self._now = limit_label, now
        self.counters: dict[SeriesKey, Counter] = {}
        self._last_spans: dict[SeriesKey, Span] = {}
        """Of counters with an exemplar: only the last sampled span of each becomes one."""
        self.histograms: dict[SeriesKey, HistogramBuilder] = {}
        self.attempts: dict[tuple[str, str], list[Attempt]] = {}
        """By operation and task."""

    def count(self, spec: MetricSpec, labels: tuple[str, ...], value: float = 1.0) -> None:
        """Add to a counter."""
        counter = self.counters.get((spec.name, labels))
        if counter is None:
            self.counters[spec.name, labels] = Counter(value)
        else:
            counter.value += value

    def finished_counters(self) -> Iterator[tuple[SeriesKey, Counter]]:
        """Yield the counters, with their exemplars."""
        for key, counter in self.counters.items():
            counter.exemplar = Exemplar.of(self._last_spans[key], 1.0) if key in self._last_spans else None
            yield key, counter

    def _observe(self, spec: MetricSpec, labels: tuple[str, ...], value: float, span: Span) -> None:
        builder = self.histograms.get((spec.name, labels))
        if builder is None:
            builder = self.histograms[spec.name, labels] = HistogramBuilder(spec.buckets)
        builder.observe(value, span)

    def add(self, span: Span, phases: Iterable[Span]) -> None:
        """Add an operation or task with its phases."""
        attributes, limit = span.attributes, self._limit_label
        outcome, task = limit("outcome", attributes.get(names.OUTCOME)), limit("task", attributes.get(names.TASK_NAME))
        if names.OPERATION not in attributes:
            self.count(metrics.TASKS, (task, outcome))
            return
        operation = limit("operation", attributes[names.OPERATION])
        origin = (limit("system", attributes.get(names.SYSTEM)), limit("store", attributes.get(names.STORE)), task)
        error_class = limit("error_class", attributes.get(names.ERROR_CLASS))
        labels = (operation, outcome, error_class, *origin)
        self.count(metrics.OPERATIONS, labels)
        if span.unsampled is UNSET:
            self._last_spans[metrics.OPERATIONS.name, labels] = span
        self._observe(metrics.OPERATION_DURATION, (operation, *origin), max(span.seconds, 0.0), span)
        self._add_waits(origin[0], task, span)
        phase_names = [self._add_phase(operation, phase) for phase in phases]
        self._add_amounts(operation, task, span)
        self._add_findings(operation, task, outcome, error_class, attributes)
        attempt = _attempt(span, operation, outcome, error_class, self._now, limit, validated="validate" in phase_names)
        self.attempts.setdefault((operation, task), []).append(attempt)

    def _add_waits(self, system: str, task: str, span: Span) -> None:
        """Add the times of an async save, and for how long the ranks of a distributed save waited for a straggler."""
        attributes = span.attributes
        if names.ASYNC_RELEASED in attributes:
            for spec, name in _ASYNC_TIMES:
                if seconds := amount(attributes.get(name)):
                    self._observe(spec, (system, task), seconds, span)
            if durable := amount(attributes.get(names.ASYNC_DURABLE)):
                pending = max(durable - amount(attributes[names.ASYNC_RELEASED]), 0.0)
                self._observe(metrics.ASYNC_PENDING, (system, task), pending, span)
        if delay := amount(attributes.get(names.STRAGGLER_DELAY)):
            phase = self._limit_label("phase", attributes.get(names.STRAGGLER_PHASE))
            self._observe(metrics.STRAGGLER_DELAY, (phase, task), delay, span)

    def _add_phase(self, operation: str, span: Span) -> str:
        phase = self._limit_label("phase", span.attributes[names.PHASE])
        self._observe(metrics.PHASE_DURATION, (operation, phase), max(span.seconds, 0.0), span)
        if cpu := amount(span.attributes.get(names.CPU_TIME)):
            self.count(metrics.PHASE_CPU_TIME, (operation, phase), cpu)
        return phase

    def _add_amounts(self, operation: str, task: str, span: Span) -> None:
        """Add sizes, compression ratio, throughput, resources, and the age of a restored checkpoint."""
        attributes = span.attributes
        for kind, name in _SIZES:
            if size := amount(attributes.get(name)):
                self._observe(metrics.SIZE, (kind, operation, task), size, span)
        if ratio := amount(attributes.get(names.RATIO)):
            self._observe(metrics.RATIO, (task,), ratio, span)
        if speed := amount(attributes.get(names.THROUGHPUT)):
            self._observe(metrics.THROUGHPUT, (operation,), speed, span)
        if cpu := amount(attributes.get(names.CPU_TIME)):
            self.count(metrics.CPU_TIME, (operation, task), cpu)
        for direction, name in (("read", names.IO_READ), ("write", names.IO_WRITE)):
            if transferred := amount(attributes.get(name)):
                self.count(metrics.IO, (operation, direction, task), transferred)
        if operation in _AGE_METRICS and (age := amount(attributes.get(names.SOURCE_AGE))):
            self._observe(_AGE_METRICS[operation], (task,), age, span)

    def _add_findings(self, operation: str, task: str, outcome: str, error_class: str, attributes: dict[str, Any]) -> None:
        """Add the numbers of damaged checkpoints, altered keys and deleted checkpoints, and the bytes that were freed."""
        damaged = max(amount(attributes.get(names.DAMAGED_COUNT)), float(error_class == "integrity"))
        if damaged:
            self.count(metrics.CORRUPTION, (operation, task), damaged)
        if altered := attributes.get(names.ALTERED_KEYS):
            self.count(metrics.ALTERED_KEYS, (operation, task), len(altered) if isinstance(altered, list | tuple) else 1.0)
        if outcome == "ok" and operation in ("delete", "prune"):
            count = 1.0 if operation == "delete" else amount(attributes.get(names.COUNT))
            self.count(metrics.DELETED_CHECKPOINTS, (operation, task), count)
            self.count(metrics.FREED_BYTES, (operation, task), amount(attributes.get(names.SIZE_FREED)))


def amount(value: Any) -> float:
    """Return a positive, finite number as a float, and 0 for any other value. Attributes may come from other programs and have any type."""
    return float(value) if value is not None and isinstance(value, int | float) and 0 < value < _MAX_AMOUNT else 0.0


def _attempt(span: Span, operation: str, outcome: str, error_class: str, now: float, limit: LimitLabel, *, validated: bool) -> Attempt:
    attributes = span.attributes
    is_save = operation == "save"
    damaged, altered = attributes.get(names.DAMAGED_COUNT), attributes.get(names.ALTERED_KEYS)
    was_checked = operation == "verify" or (operation in _AGE_METRICS and (validated or attributes.get(names.COMPARED) is True))
    error_classes = (error_class if outcome in FAILURE_OUTCOMES else "", "integrity" if damaged else "")
    return Attempt(
        start=span.start_unix_nano / 1e9,
        end=span.end_unix_nano / 1e9,
        outcome=outcome,
        verified=was_checked and not damaged and not altered,
        detected=now if outcome == "interrupted" else span.end_unix_nano / 1e9,
        error_classes=tuple(dict.fromkeys(filter(None, error_classes))),
        altered=bool(altered),
        run_id=str(attributes.get(names.RUN_ID, attributes.get(names.TASK_ID, ""))),
        save_id=_save_id(attributes) if is_save else "",
        interval=amount(attributes.get(names.INTERVAL)),
        sizes={kind: size for kind, name in _SIZES if (size := amount(attributes.get(name)))} if is_save else {},
        peak_memory=amount(attributes.get(names.MEMORY_PEAK)),
        key_sizes=_key_sizes(attributes, limit) if is_save else {},
        location=str(attributes.get(names.LOCATION, "")) if is_save else "",
    )


def _save_id(attributes: dict[str, Any]) -> str:
    """Return the step or id of a save. A path is not enough: programs save to the same path again and again."""
    id = str(attributes.get(names.ID, ""))
    return str(attributes.get(names.STEP, "" if os.path.isabs(id) else id))


def _key_sizes(attributes: dict[str, Any], limit: LimitLabel) -> dict[str, float]:
    """Return the sizes of the largest keys; the rest of the serialized state is `_other_`.

    Names of keys are limited, because they may be ids that change with every save.
    """
    key_names = _as_sequence(attributes.get(names.KEY_NAMES))
    pairs = islice(zip(key_names, _as_sequence(attributes.get(names.KEY_SIZES)), strict=False), LARGEST_KEYS)
    sizes = {key: size for name, raw in pairs if (size := amount(raw)) and name != OTHER and (key := limit("key", name)) != OTHER}
    rest = amount(attributes.get(names.SIZE_SERIALIZED)) - sum(sizes.values())
    return {**sizes, OTHER: rest} if key_names and rest > 0 else sizes


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
