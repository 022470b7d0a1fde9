"""Spans to numbers: pure adding up, of one batch, in memory.

The records of a journal arrive whole: the phases of an operation stand before it, in one batch. That tells a phase its operation also
where somebody else's span stands between the two.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

from ckpt_observe.metricstore.points import Counter, Exemplar, Histogram
from ckpt_observe.metricstore.progress import FAILED, Attempt
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import LARGEST_KEYS, OTHER, MetricSpec
from ckpt_observe.span import Span

Key = tuple[str, tuple[str, ...]]
"""A metric's name and its label values, in the order of its spec."""
Label = Callable[[str, Any], str]
"""A label's name and a raw value of it, to one of a bounded set."""
Record = tuple[Span, list[Span]]
"""An operation or task, and its phases."""

_SIZES: Final = (("state", names.SIZE_STATE), ("serialized", names.SIZE_SERIALIZED), ("stored", names.SIZE_STORED))
_READ_BACK: Final = ("load", "restore")
_TOO_MUCH: Final = 1e300
"""Neither infinity nor an integer that no float holds."""


def records(spans: Iterable[Span]) -> Iterator[Record]:
    """Spans by the operation or task that they belong to."""
    phases: list[Span] = []
    for span in spans:
        if names.PHASE in span.attributes:
            phases.append(span)
        else:
            yield span, [phase for phase in phases if phase.trace_id == span.trace_id]
            phases = []


class Filling:
    """A histogram being filled. Only the last span of each bucket becomes an exemplar, so they are made at the end."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self._buckets, self._sum = buckets, 0.0
        self._counts = [0] * (len(buckets) + 1)
        self._last: dict[int, tuple[Span, float]] = {}

    def observe(self, value: float, span: Span) -> None:
        bucket = bisect_left(self._buckets, value)
        self._counts[bucket] += 1
        self._sum += value
        self._last[bucket] = (span, value)

    def done(self) -> Histogram:
        return Histogram(self._counts, self._sum, {bucket: _exemplar(*last) for bucket, last in self._last.items()})


class Tally:
    """What a batch adds that became known at `now` (Unix time)."""

    def __init__(self, label: Label, now: float) -> None:
        self._label, self._now = label, now
        self.counters: dict[Key, Counter] = {}
        self.histograms: dict[Key, Filling] = {}
        self.attempts: dict[tuple[str, str], list[Attempt]] = {}

    def count(self, spec: MetricSpec, labels: tuple[str, ...], value: float = 1.0, exemplar: Exemplar | None = None) -> None:
        found = self.counters.get((spec.name, labels))
        if found is None:
            self.counters[spec.name, labels] = Counter(value, exemplar)
        else:
            found.value += value
            found.exemplar = exemplar

    def _observe(self, spec: MetricSpec, labels: tuple[str, ...], value: float, span: Span) -> None:
        found = self.histograms.get((spec.name, labels))
        if found is None:
            found = self.histograms[spec.name, labels] = Filling(spec.buckets)
        found.observe(value, span)

    def add(self, span: Span, phases: Iterable[Span]) -> None:
        given, label = span.attributes, self._label
        outcome, task = label("outcome", given.get(names.OUTCOME)), label("task", given.get(names.TASK_NAME))
        if names.OPERATION not in given:
            self.count(metrics.TASKS, (task, outcome))
            return
        operation = label("operation", given[names.OPERATION])
        who = (label("system", given.get(names.SYSTEM)), label("store", given.get(names.STORE)), task)
        failure = label("error_class", given.get(names.ERROR_CLASS))
        self.count(metrics.OPERATIONS, (operation, outcome, failure, *who), exemplar=_exemplar(span, 1.0))
        self._observe(metrics.OPERATION_DURATION, (operation, *who), max(span.seconds, 0.0), span)
        seen = [self._phase(operation, phase) for phase in phases]
        self._amounts(operation, task, span)
        self._findings(operation, task, outcome, failure, given)
        attempt = _attempt(span, operation, outcome, failure, self._now, self._label, validated="validate" in seen)
        self.attempts.setdefault((operation, task), []).append(attempt)

    def _phase(self, operation: str, span: Span) -> str:
        phase = self._label("phase", span.attributes[names.PHASE])
        self._observe(metrics.PHASE_DURATION, (operation, phase), max(span.seconds, 0.0), span)
        if cpu := amount(span.attributes.get(names.CPU_TIME)):
            self.count(metrics.PHASE_CPU_TIME, (operation, phase), cpu)
        return phase

    def _amounts(self, operation: str, task: str, span: Span) -> None:
        given = span.attributes
        for kind, name in _SIZES:
            if size := amount(given.get(name)):
                self._observe(metrics.SIZE, (kind, operation, task), size, span)
        if ratio := amount(given.get(names.RATIO)):
            self._observe(metrics.RATIO, (task,), ratio, span)
        if speed := amount(given.get(names.THROUGHPUT)):
            self._observe(metrics.THROUGHPUT, (operation,), speed, span)
        if cpu := amount(given.get(names.CPU_TIME)):
            self.count(metrics.CPU_TIME, (operation, task), cpu)
        for direction, name in (("read", names.IO_READ), ("write", names.IO_WRITE)):
            if moved := amount(given.get(name)):
                self.count(metrics.IO, (operation, direction, task), moved)
        if operation in _READ_BACK and (age := amount(given.get(names.SOURCE_AGE))):
            self._observe(metrics.RESTORE_AGE, (task,), age, span)

    def _findings(self, operation: str, task: str, outcome: str, failure: str, given: dict[str, Any]) -> None:
        damaged = amount(given.get(names.DAMAGED_COUNT)) + (failure == "integrity")
        if damaged:
            self.count(metrics.CORRUPTION, (operation, task), damaged)
        if altered := given.get(names.ALTERED_KEYS):
            self.count(metrics.ALTERED_KEYS, (operation, task), len(altered) if isinstance(altered, list | tuple) else 1.0)
        if outcome == "ok" and operation in ("delete", "prune"):
            self.count(metrics.DELETED_CHECKPOINTS, (operation, task), 1.0 if operation == "delete" else amount(given.get(names.COUNT)))
            self.count(metrics.FREED_BYTES, (operation, task), amount(given.get(names.SIZE_FREED)))


def amount(value: Any) -> float:
    """The value if it is one that can be added up, else 0: attributes come from other people's programs."""
    return float(value) if value is not None and isinstance(value, int | float) and 0 < value < _TOO_MUCH else 0.0


def _exemplar(span: Span, value: float) -> Exemplar:
    return Exemplar(span.trace_id, span.span_id, value, span.end_unix_nano / 1e9)


def _attempt(span: Span, operation: str, outcome: str, failure: str, now: float, label: Label, *, validated: bool) -> Attempt:
    given = span.attributes
    saving = operation == "save"
    damaged, altered = given.get(names.DAMAGED_COUNT), given.get(names.ALTERED_KEYS)
    read_back = operation == "verify" or (operation in _READ_BACK and validated)
    return Attempt(
        start=span.start_unix_nano / 1e9,
        end=span.end_unix_nano / 1e9,
        outcome=outcome,
        verified=read_back and not damaged and not altered,
        told=now if outcome == "interrupted" else span.end_unix_nano / 1e9,
        failures=tuple(filter(None, (failure if outcome in FAILED else "", "integrity" if damaged else ""))),
        altered=bool(altered),
        run=str(given.get(names.TASK_ID, "")),
        mark=str(given.get(names.STEP, given.get(names.ID, ""))) if saving else "",
        interval=amount(given.get(names.INTERVAL)),
        sizes={kind: size for kind, name in _SIZES if (size := amount(given.get(name)))} if saving else {},
        memory=amount(given.get(names.MEMORY_PEAK)),
        keys=_keys(given, label) if saving else {},
        location=str(given.get(names.LOCATION, "")) if saving else "",
    )


def _keys(given: dict[str, Any], label: Label) -> dict[str, float]:
    """The sizes of the largest keys; what is left of the serialized state is `_other_`. Keys may be ids, others at each save."""
    told = _listed(given.get(names.KEY_NAMES))
    named = islice(zip(told, _listed(given.get(names.KEY_SIZES)), strict=False), LARGEST_KEYS)
    sizes = {key: size for name, raw in named if (size := amount(raw)) and name != OTHER and (key := label("key", name)) != OTHER}
    rest = amount(given.get(names.SIZE_SERIALIZED)) - sum(sizes.values())
    return {**sizes, OTHER: rest} if told and rest > 0 else sizes


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
