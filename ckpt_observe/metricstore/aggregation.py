"""Adds up one batch of spans in memory: counters, histograms and attempts.

The spans of an operation arrive in one batch, its phases before the operation itself. A phase is therefore assigned to the operation that
follows it, even if its parent is a span of another library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import UNSET

from ckpt_observe.metricstore.attempts import SIZES, LimitLabel, amount, to_attempt
from ckpt_observe.metricstore.operation_status import Attempt
from ckpt_observe.metricstore.points import Counter, Exemplar, HistogramBuilder
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import OTHER, MetricSpec
from ckpt_observe.span import Span

SeriesKey: TypeAlias = tuple[str, tuple[str, ...]]
"""The name of a metric and its label values, in the order of its spec."""
SpanGroup: TypeAlias = tuple[Span, list[Span]]
"""An operation or task, and its phases."""

_LABELS: Final = {
    "operation": names.OPERATION,
    "outcome": names.OUTCOME,
    "error_class": names.ERROR_CLASS,
    "system": names.SYSTEM,
    "store": names.STORE,
    "task": names.TASK_NAME,
}
"""The labels of the number of operations, and the attributes that have their values."""
_ASYNC_TIMES: Final = (
    (metrics.ASYNC_BLOCKED, names.ASYNC_BLOCKED),
    (metrics.ASYNC_RELEASED, names.ASYNC_RELEASED),
    (metrics.ASYNC_DURABLE, names.ASYNC_DURABLE),
)
_AGE_METRICS: Final = {"restore": metrics.RESTORE_AGE, "drill": metrics.DRILL_AGE}
"""For each operation that reads a checkpoint, the metric for its age."""


class _Labels(NamedTuple):
    """The label values of an operation, in the order of the metric `OPERATIONS`."""

    operation: str
    outcome: str
    error_class: str
    system: str
    store: str
    task: str


class _OperationSeries:
    """The series of operations with the same labels. They are searched for once per batch, not once per operation."""

    def __init__(self, labels: _Labels, key: SeriesKey, counter: Counter, durations: HistogramBuilder, attempts: list[Attempt]) -> None:
        self.labels, self.key, self.counter, self.durations, self.attempts = labels, key, counter, durations, attempts
        self.histograms: dict[str, HistogramBuilder] = {}
        """By attribute that has the value."""
        self.phases: dict[str, tuple[str, HistogramBuilder]] = {}
        """Label and durations of each phase, by its name."""


_HISTOGRAMS: Final[dict[str, Callable[[_Labels], tuple[MetricSpec, tuple[str, ...]]]]] = {
    **{name: partial(lambda kind, labels: (metrics.SIZE, (kind, labels.operation, labels.task)), kind) for kind, name in SIZES},
    names.RATIO: lambda labels: (metrics.RATIO, (labels.task,)),
    names.THROUGHPUT: lambda labels: (metrics.THROUGHPUT, (labels.operation,)),
}
"""Attributes with amounts of which there is a histogram: its metric and labels."""
_COUNTERS: Final[dict[str, Callable[[_Labels], tuple[MetricSpec, tuple[str, ...]]]]] = {
    names.CPU_TIME: lambda labels: (metrics.CPU_TIME, (labels.operation, labels.task)),
    names.IO_READ: lambda labels: (metrics.IO, (labels.operation, "read", labels.task)),
    names.IO_WRITE: lambda labels: (metrics.IO, (labels.operation, "write", labels.task)),
}
"""The same for counters."""


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
        self._series: dict[tuple[str | None, ...], _OperationSeries] = {}
        """By the raw values of all labels."""

    def count(self, spec: MetricSpec, labels: tuple[str, ...], value: float = 1.0) -> None:
        """Add to a counter."""
        self.counters.setdefault((spec.name, labels), Counter()).value += value

    def finished_counters(self) -> Iterator[tuple[SeriesKey, Counter]]:
        """Yield the counters, with their exemplars."""
        for key, counter in self.counters.items():
            counter.exemplar = Exemplar.of(self._last_spans[key], 1.0) if key in self._last_spans else None
            yield key, counter

    def _histogram(self, spec: MetricSpec, labels: tuple[str, ...]) -> HistogramBuilder:
        builder = self.histograms.get((spec.name, labels))
        if builder is None:
            builder = self.histograms[spec.name, labels] = HistogramBuilder(spec.buckets)
        return builder

    def add(self, span: Span, phases: Iterable[Span]) -> None:
        """Add an operation or task with its phases."""
        attributes = span.attributes
        if names.OPERATION not in attributes:
            limit = self._limit_label
            outcome, task = limit("outcome", attributes.get(names.OUTCOME)), limit("task", attributes.get(names.TASK_NAME))
            self.count(metrics.TASKS, (task, outcome))
            return
        series = self._find_series(attributes)
        labels = series.labels
        series.counter.value += 1
        if span.unsampled is UNSET:
            self._last_spans[series.key] = span
        series.durations.observe(_seconds(span), span)
        self._add_waits(labels.system, labels.task, span)
        phase_names = [self._add_phase(series, phase) for phase in phases]
        self._add_amounts(series, span)
        self._add_findings(labels, attributes)
        attempt = to_attempt(
            span, labels.operation, labels.outcome, labels.error_class, self._now, self._limit_label, validated="validate" in phase_names
        )
        series.attempts.append(attempt)

    def _find_series(self, attributes: dict[str, Any]) -> _OperationSeries:
        raw_values = tuple(map(attributes.get, _LABELS.values()))
        try:
            series = self._series.get(raw_values)
        except TypeError:  # a value from another program that is not hashable
            series = None
        if series is None:
            labels = _Labels(*map(self._limit_label, _LABELS, raw_values))
            key = (metrics.OPERATIONS.name, tuple(labels))
            series = _OperationSeries(
                labels,
                key,
                self.counters.setdefault(key, Counter()),
                self._histogram(metrics.OPERATION_DURATION, (labels.operation, labels.system, labels.store, labels.task)),
                self.attempts.setdefault((labels.operation, labels.task), []),
            )
            # Not if a value is counted as overflow each time, or equals another one that has another text, as 1 and True do.
            if OTHER not in labels and all(value is None or type(value) is str for value in raw_values):
                self._series[raw_values] = series
        return series

    def _add_waits(self, system: str, task: str, span: Span) -> None:
        """Add the times of an async save, and for how long the ranks of a distributed save waited for a straggler."""
        attributes = span.attributes
        if names.ASYNC_RELEASED in attributes:
            for spec, name in _ASYNC_TIMES:
                if seconds := amount(attributes.get(name)):
                    self._histogram(spec, (system, task)).observe(seconds, span)
            if durable := amount(attributes.get(names.ASYNC_DURABLE)):
                pending = max(durable - amount(attributes[names.ASYNC_RELEASED]), 0.0)
                self._histogram(metrics.ASYNC_PENDING, (system, task)).observe(pending, span)
        if delay := amount(attributes.get(names.STRAGGLER_DELAY)):
            phase = self._limit_label("phase", attributes.get(names.STRAGGLER_PHASE))
            self._histogram(metrics.STRAGGLER_DELAY, (phase, task)).observe(delay, span)

    def _add_phase(self, series: _OperationSeries, span: Span) -> str:
        """Add a phase of an operation. Return its label."""
        name, cpu_time = span.attributes[names.PHASE], span.attributes.get(names.CPU_TIME)
        known_phase = series.phases.get(name) if type(name) is str else None
        if known_phase is None:
            phase = self._limit_label("phase", name)
            builder = self._histogram(metrics.PHASE_DURATION, (series.labels.operation, phase))
            if phase == name:
                series.phases[name] = phase, builder
        else:
            phase, builder = known_phase
        builder.observe(_seconds(span), span)
        if cpu_time is not None and (cpu := amount(cpu_time)):
            self.count(metrics.PHASE_CPU_TIME, (series.labels.operation, phase), cpu)
        return phase

    def _add_amounts(self, series: _OperationSeries, span: Span) -> None:
        """Add sizes, compression ratio, throughput, resources, and the age of a restored checkpoint."""
        get, labels = span.attributes.get, series.labels
        for name, histogram_of in _HISTOGRAMS.items():
            if (raw := get(name)) is not None and (value := amount(raw)):
                builder = series.histograms.get(name)
                if builder is None:
                    builder = series.histograms[name] = self._histogram(*histogram_of(labels))
                builder.observe(value, span)
        for name, counter_of in _COUNTERS.items():
            if (raw := get(name)) is not None and (value := amount(raw)):
                self.count(*counter_of(labels), value)
        if labels.operation in _AGE_METRICS and (age := amount(get(names.SOURCE_AGE))):
            self._histogram(_AGE_METRICS[labels.operation], (labels.task,)).observe(age, span)

    def _add_findings(self, labels: _Labels, attributes: dict[str, Any]) -> None:
        """Add the numbers of damaged checkpoints, altered keys and deleted checkpoints, and the bytes that were freed."""
        operation, task = labels.operation, labels.task
        if damaged := max(amount(attributes.get(names.DAMAGED_COUNT)), float(labels.error_class == "integrity")):
            self.count(metrics.CORRUPTION, (operation, task), damaged)
        if altered := attributes.get(names.ALTERED_KEYS):
            self.count(metrics.ALTERED_KEYS, (operation, task), len(altered) if isinstance(altered, list | tuple) else 1.0)
        if operation in ("delete", "prune") and labels.outcome == "ok":
            count = 1.0 if operation == "delete" else amount(attributes.get(names.COUNT))
            self.count(metrics.DELETED_CHECKPOINTS, (operation, task), count)
            self.count(metrics.FREED_BYTES, (operation, task), amount(attributes.get(names.SIZE_FREED)))


def _seconds(span: Span) -> float:
    return max(span.end_unix_nano - span.start_unix_nano, 0) / 1e9
