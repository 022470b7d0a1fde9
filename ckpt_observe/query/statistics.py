"""Statistics over many operations: how often, how long, how large, what grows, and how often programs die."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, Self, TypeAlias

import msgspec

from ckpt_observe.query.results import ObservedOperation
from ckpt_observe.semconv import attributes as names

_INSTANCE = "service.instance.id"
_SizesByRun: TypeAlias = dict[tuple[str, str], list[tuple[int, int]]]
"""End (Unix nanoseconds) and size of each save, by run and namespace."""


class Quantiles(msgspec.Struct, frozen=True):
    """The distribution of a value. Each quantile is a value that occurred."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """Return the quantiles of these values, or None if there are none."""
        ordered = sorted(values)
        if not ordered:
            return None
        last = len(ordered) - 1
        p50, p90, p99 = (ordered[round(last * share)] for share in (0.5, 0.9, 0.99))
        return cls(len(ordered), sum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


class OperationStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """All finished operations of one kind, of one task and library."""

    task_name: str | None
    """Its name; of operations without a task, the program."""
    system: str | None
    operation: str
    outcomes: dict[str, int]
    """Number of operations by outcome."""
    error_codes: dict[str, int]
    seconds: Quantiles | None
    """Duration of those that succeeded."""
    phase_seconds: dict[str, Quantiles]
    """Duration of each phase of those that succeeded."""
    stored_bytes: Quantiles | None


class KeyGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """The size of one key of the state, over the saves that report it."""

    name: str
    saves: int
    first_bytes: int
    last_bytes: int
    max_bytes: int
    bytes_per_save: float
    """Slope of the line that fits the sizes best."""


class Lifetime(msgspec.Struct, frozen=True):
    """For how long a process was observed, and whether it died then."""

    seconds: float
    died: bool


class TaskStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The saves of one task with one library, and how often its programs die."""

    task_name: str | None
    """Its name; of operations without a task, the program."""
    system: str | None
    runs: int
    """Number of different task ids."""
    saves: int
    """Number of saves that succeeded."""
    first_unix_nano: int
    last_unix_nano: int
    save_seconds: Quantiles | None
    """How long a save held up the program: its duration, or the time for which an async save blocked."""
    interval_seconds: Quantiles | None
    """From the end of a save to the start of the next in the same run and process."""
    interruptions: int
    """Number of processes that died during one of the operations or tasks."""
    observed_seconds: float
    """Sum over all processes of the time from the first operation to the last."""
    lifetimes: tuple[Lifetime, ...]
    """From the first operation to the last of each process."""
    compression_ratios: dict[str, Quantiles]
    """What each codec achieved: bytes before / bytes after compression."""
    first_bytes: int | None
    last_bytes: int | None
    bytes_per_save: float
    """Growth of the stored size from save to save of a run: slope of the lines that fit best."""
    keys: tuple[KeyGrowth, ...]
    """Largest first. Libraries report the largest keys of the state only."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the operations that match a filter."""

    operations: tuple[OperationStatistics, ...]
    """Most frequent first."""
    tasks: tuple[TaskStatistics, ...]
    """With the most saves first."""


def collect_statistics(operations: Iterable[ObservedOperation]) -> Statistics:
    """Return the statistics of finished operations. `operations` are in any order."""
    by_kind: dict[tuple[str | None, str | None, str], _KindTotals] = defaultdict(_KindTotals)
    by_task: dict[tuple[str | None, str | None], _TaskTotals] = defaultdict(_TaskTotals)
    dead: set[str] = set()
    for operation in operations:
        if operation.outcome == "interrupted":  # a task, too: most programs die between two saves
            dead.add(_process(operation))
        if operation.end_unix_nano is None or operation.kind != "operation":
            continue
        task = operation.task_title or None, operation.system
        by_kind[*task, operation.name].add(operation)
        by_task[task].add(operation)
    kinds = [totals.result(*key) for key, totals in by_kind.items()]
    tasks = [totals.result(*key, dead) for key, totals in by_task.items()]
    return Statistics(
        operations=tuple(sorted(kinds, key=lambda kind: -sum(kind.outcomes.values()))),
        tasks=tuple(sorted(tasks, key=lambda task: -task.saves)),
    )


class _KindTotals:
    def __init__(self) -> None:
        self._outcomes: Counter[str] = Counter()
        self._error_codes: Counter[str] = Counter()
        self._seconds = array("d")
        self._bytes = array("d")
        self._phases: dict[str, array[float]] = defaultdict(lambda: array("d"))

    def add(self, operation: ObservedOperation) -> None:
        self._outcomes[operation.outcome] += 1
        if code := operation.attributes.get(names.ERROR_CODE):
            self._error_codes[str(code)] += 1
        if operation.outcome != "ok":
            return
        self._seconds.append(operation.seconds())
        if operation.stored_bytes is not None:
            self._bytes.append(operation.stored_bytes)
        for phase in operation.phases:
            if phase.end_unix_nano is not None:
                self._phases[phase.name].append((phase.end_unix_nano - phase.start_unix_nano) / 1e9)

    def result(self, task_name: str | None, system: str | None, name: str) -> OperationStatistics:
        phases = {phase: quantiles for phase, seconds in self._phases.items() if (quantiles := Quantiles.of(seconds))}
        return OperationStatistics(
            task_name=task_name,
            system=system,
            operation=name,
            outcomes=dict(self._outcomes),
            error_codes=dict(self._error_codes.most_common()),
            seconds=Quantiles.of(self._seconds),
            phase_seconds=phases,
            stored_bytes=Quantiles.of(self._bytes),
        )


class _TaskTotals:
    def __init__(self) -> None:
        self._runs: set[str | None] = set()
        self._processes: dict[str, tuple[int, int]] = {}
        self._saves: dict[tuple[str, str | None, str], list[tuple[int, int]]] = defaultdict(list)
        self._save_seconds = array("d")
        self._sizes: _SizesByRun = defaultdict(list)
        self._key_sizes: dict[str, _SizesByRun] = defaultdict(lambda: defaultdict(list))
        self._ratios: dict[str, array[float]] = defaultdict(lambda: array("d"))

    def add(self, operation: ObservedOperation) -> None:
        attributes, start = operation.attributes, operation.start_unix_nano
        end = operation.end_unix_nano or start
        process = _process(operation)
        earliest, latest = self._processes.get(process, (start, end))
        self._processes[process] = min(earliest, start), max(latest, end)
        self._runs.add(operation.task_id)
        if operation.name != "save" or operation.outcome != "ok":
            return
        namespace = str(attributes.get(names.NAMESPACE, ""))
        self._saves[process, operation.task_id, namespace].append((start, end))
        run = operation.task_id or process, namespace
        blocked = attributes.get(names.ASYNC_BLOCKED)
        self._save_seconds.append(blocked if isinstance(blocked, int | float) else operation.seconds())
        ratio = attributes.get(names.RATIO)
        if isinstance(ratio, int | float):
            self._ratios[str(attributes.get(names.CODEC))].append(ratio)
        if operation.stored_bytes is not None:
            self._sizes[run].append((end, operation.stored_bytes))
        for name, size in zip(_items(attributes.get(names.KEY_NAMES)), _items(attributes.get(names.KEY_SIZES)), strict=False):
            if isinstance(size, int):
                self._key_sizes[str(name)][run].append((end, size))

    def result(self, task_name: str | None, system: str | None, dead: set[str]) -> TaskStatistics:
        sizes = _in_order(self._sizes)
        intervals: list[float] = []
        for saves in self._saves.values():
            saves.sort()
            intervals += [max(0, after[0] - before[1]) / 1e9 for before, after in itertools.pairwise(saves)]
        keys = [key_growth(name, _in_order(runs), _growth(runs)) for name, runs in self._key_sizes.items()]
        return TaskStatistics(
            task_name=task_name,
            system=system,
            runs=len(self._runs),
            saves=sum(map(len, self._saves.values())),
            first_unix_nano=min(start for start, _ in self._processes.values()),
            last_unix_nano=max(end for _, end in self._processes.values()),
            save_seconds=Quantiles.of(self._save_seconds),
            interval_seconds=Quantiles.of(intervals),
            interruptions=len(dead & self._processes.keys()),
            observed_seconds=sum(end - start for start, end in self._processes.values()) / 1e9,
            lifetimes=tuple(Lifetime((end - start) / 1e9, name in dead) for name, (start, end) in self._processes.items()),
            compression_ratios={codec: quantiles for codec, ratios in self._ratios.items() if (quantiles := Quantiles.of(ratios))},
            first_bytes=sizes[0] if sizes else None,
            last_bytes=sizes[-1] if sizes else None,
            bytes_per_save=_growth(self._sizes),
            keys=tuple(sorted(keys, key=lambda key: -key.last_bytes)),
        )


def _process(operation: ObservedOperation) -> str:
    return str(operation.resource.get(_INSTANCE, operation.pid))


def _in_order(runs: _SizesByRun) -> list[int]:
    """Return the sizes of all runs, oldest first."""
    return [size for _, size in sorted(itertools.chain.from_iterable(runs.values()))]


def _growth(runs: _SizesByRun) -> float:
    """Return the growth from save to save within a run. That one run has a larger state than another is not growth."""
    return slope(*([size for _, size in sorted(rows)] for rows in runs.values()))


def key_growth(name: str, sizes: list[int], bytes_per_save: float) -> KeyGrowth:
    """Return the growth of a key from its sizes, oldest first, and its growth from save to save."""
    return KeyGrowth(
        name=name, saves=len(sizes), first_bytes=sizes[0], last_bytes=sizes[-1], max_bytes=max(sizes), bytes_per_save=bytes_per_save
    )


def slope(*series: list[int]) -> float:
    """Return the slope of parallel lines with the least squares: one line through (0, values[0]), (1, values[1]), ... for each series."""
    covariance = spread = 0.0
    for values in series:
        middle, mean = (len(values) - 1) / 2, sum(values) / max(len(values), 1)
        spread += sum((position - middle) ** 2 for position in range(len(values)))
        covariance += sum((position - middle) * (value - mean) for position, value in enumerate(values))
    return covariance / spread if spread else 0.0


def _items(value: Any) -> list[Any]:
    """Return a list attribute. The host program may have set anything."""
    return value if isinstance(value, list) else []
