"""What to change, from measurements: the interval, the slowest phase, the codec, the largest key. Every sentence has its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from ckpt_observe.query import OperationStatistics, Statistics, TaskStatistics
from ckpt_observe.support.formatting import format_duration, format_ratio, format_size
from ckpt_observe.tuning.failure_model import FailureModel, fit_failures
from ckpt_observe.tuning.interval import lost_share, optimal_interval

MIN_SAVES: Final = 3
"""Saves of a task below which nothing is recommended."""
_NOTABLE_GAIN: Final = 0.05
"""Share of the lost time that another interval must avoid to be recommended. The minimum is flat: a third off costs 5 %."""
_LARGE_SHARE: Final = 0.5
"""Share of a save, or of a state, from which on a phase or key is worth a look."""
_MIN_KEY_BYTES: Final = 10_000
_MIN_PHASE_SECONDS: Final = 0.001
_GOOD_RATIO: Final = 1.2

MIN_OBSERVED_SECONDS: Final = 600.0
"""Less time with few deaths says nothing about the time between failures: after a first try, the advice would be to save all the time."""
_FEW_DEATHS: Final = 5
"""Fewer tell the time between failures only roughly: after 4, it is between 0.5 and 2.9 times the measured one in 90 of 100 cases."""
PHASE_ADVICE: Final = {
    "stage": "Copy less: save only what a restart needs, or copy to pinned memory.",
    "serialize": "Use a binary format (`msgpack`, `arrays`, safetensors), or keep derived values out of the state.",
    "compress": "Use a faster codec (`lz4`, `zstd`), or none.",
    "encrypt": "Save fewer bytes: encryption takes time for each.",
    "write": "Save fewer bytes, write to a local disk and copy later, or use an async save.",
    "commit": "Use a file system or database whose sync is faster, or save several small states as a batch.",
    "validate": "Compare a sample instead of each checkpoint: `ckpt-observe verify --sample`.",
    "digest": "Save fewer bytes: a digest takes time for each.",
    "wait": "Saves overlap: save less often, or make each save shorter.",
    "retain": "Run `ckpt-observe prune` on a schedule instead of after each save.",
    "plan": "Cache the plan, if the library can, or save with fewer ranks.",
    "finalize": "Write fewer, larger files.",
}
"""What to do if a phase takes most of a save."""


class Assumptions(msgspec.Struct, frozen=True):
    """What the user knows better than the measurements. None: measured."""

    mean_time_between_failures: float | None = None
    recovery_seconds: float | None = None


class Recommendation(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to change, or to leave as it is."""

    task: str | None
    system: str | None
    subject: Literal["interval", "phase", "codec", "key"]
    action: str
    """What to do."""
    reason: str
    """Why, with the numbers."""
    numbers: dict[str, float]
    """The same numbers in seconds, bytes and shares from 0 to 1."""


def recommend(statistics: Statistics, assumptions: Assumptions | None = None) -> Iterator[Recommendation]:
    """Yield recommendations for each task with enough saves, the task with the most saves first."""
    known_values = assumptions or Assumptions()
    operations = {(row.task_name, row.system, row.operation): row for row in statistics.operations}
    for task in statistics.tasks:
        if task.saves < MIN_SAVES or task.save_seconds is None:
            continue
        saves = operations.get((task.task_name, task.system, "save"))
        recovery = known_values.recovery_seconds
        if recovery is None:
            recovery = _recovery_seconds(task, operations)
        yield from _interval(task, known_values, recovery)
        if saves is not None:
            yield from _slowest_phase(task, saves)
            yield from _codec(task, saves)
        yield from _largest_key(task)


def _recovery_seconds(task: TaskStatistics, operations: dict[tuple[str | None, str | None, str], OperationStatistics]) -> float:
    rows = [operations.get((task.task_name, task.system, name)) for name in ("restore", "load", "drill")]
    return next((row.seconds.mean for row in rows if row is not None and row.seconds is not None), 0.0)


def _interval(task: TaskStatistics, assumptions: Assumptions, recovery: float) -> Iterator[Recommendation]:
    cost = task.save_seconds.mean if task.save_seconds else 0.0
    mean = assumptions.mean_time_between_failures
    failures = FailureModel(mean) if mean else fit_failures(task.lifetimes)
    if failures is None or cost <= 0:
        return
    if not mean and failures.deaths < _FEW_DEATHS and task.observed_seconds < MIN_OBSERVED_SECONDS:
        action = "Observe longer runs, or give the mean time between failures with --mtbf."
        reason = f"{_describe_deaths(task, failures)}, which is too short to tell how often one does."
        numbers = {"save_seconds": cost, "observed_seconds": task.observed_seconds, "deaths": float(failures.deaths)}
        yield _create(task, "interval", action, reason, numbers)
        return
    best = optimal_interval(cost, failures, recovery)
    lost = lost_share(best, cost, failures, recovery)
    numbers = {
        "best_interval": best,
        "save_seconds": cost,
        "recovery_seconds": recovery,
        "mean_time_between_failures": failures.mean,
        "failure_shape": failures.shape,
        "deaths": failures.deaths,
        "lost_share_at_best": lost,
    }
    basis = f"A save holds up the program for {format_duration(cost)}, and {_describe_failures(task, failures, assumptions)}."
    current = task.interval_seconds.mean if task.interval_seconds else 0.0
    if current <= 0:
        action = f"Save every {format_duration(best)} of work."
        yield _create(task, "interval", action, f"{basis} That loses {lost:.1%} of the run time.", numbers)
        return
    lost_now = lost_share(current, cost, failures, recovery)
    numbers |= {"interval": current, "lost_share": lost_now}
    now, then = (f"every {format_duration(interval)} loses {share:.1%}" for interval, share in ((current, lost_now), (best, lost)))
    comparison = f"Saving {now} of the run time; saving {then}."
    is_good = lost_now - lost <= _NOTABLE_GAIN * lost_now
    action = "Keep the interval between saves." if is_good else f"Save every {format_duration(best)} of work."
    yield _create(task, "interval", action, f"{basis} {comparison}", numbers)


def _describe_failures(task: TaskStatistics, failures: FailureModel, assumptions: Assumptions) -> str:
    every = format_duration(failures.mean)
    if assumptions.mean_time_between_failures:
        return f"you say that a process dies every {every}"
    if not failures.deaths:
        observed = format_duration(task.observed_seconds)
        return f"no process died in {observed}: the mean time between failures is {every} or more, with 95 % confidence"
    caution = "; so few tell it only roughly, and --mtbf replaces it" if failures.deaths < _FEW_DEATHS else ""
    return f"{_describe_deaths(task, failures)}, one every {every} on average{caution}"


def _describe_deaths(task: TaskStatistics, failures: FailureModel) -> str:
    count = "No process" if not failures.deaths else "1 process" if failures.deaths == 1 else f"{failures.deaths} processes"
    return f"{count} died in {format_duration(task.observed_seconds)}"


def _slowest_phase(task: TaskStatistics, saves: OperationStatistics) -> Iterator[Recommendation]:
    seconds = {name: phase.mean * phase.count for name, phase in saves.phase_seconds.items()}
    count = saves.outcomes.get("ok", 0)
    if not seconds or not count or saves.seconds is None:
        return
    name = max(seconds, key=lambda phase: seconds[phase])
    per_save, share = seconds[name] / count, seconds[name] / (saves.seconds.mean * saves.seconds.count or 1)
    if share < _LARGE_SHARE or per_save < _MIN_PHASE_SECONDS or name not in PHASE_ADVICE:
        return
    reason = f"The phase {name} takes {format_duration(per_save)} of a save of {format_duration(saves.seconds.mean)} ({share:.0%})."
    yield _create(task, "phase", PHASE_ADVICE[name], reason, {"phase_seconds": per_save, "share": share})


def _codec(task: TaskStatistics, saves: OperationStatistics) -> Iterator[Recommendation]:
    """Compare the time of compression with the time that writing more bytes would take."""
    compress, write = saves.phase_seconds.get("compress"), saves.phase_seconds.get("write")
    if len(task.compression_ratios) != 1 or compress is None or write is None:
        return
    [(codec, ratios)] = task.compression_ratios.items()
    ratio = ratios.mean
    longer_write = write.mean * (max(ratio, 1.0) - 1)
    gain = compress.mean - longer_write
    numbers = {"compress_seconds": compress.mean, "write_seconds": write.mean, "ratio": ratio, "saved_seconds": gain}
    if ratio >= _GOOD_RATIO or gain <= _MIN_PHASE_SECONDS:
        return
    reason = (
        f"{codec} shrinks the state only {format_ratio(ratio)} times and takes {format_duration(compress.mean)} per save. "
        f"Without it, writing takes at most {format_duration(max(longer_write, 0.0))} longer."
    )
    yield _create(task, "codec", "Turn compression off.", reason, numbers)


def _largest_key(task: TaskStatistics) -> Iterator[Recommendation]:
    total = sum(key.last_bytes for key in task.keys)
    if not total or task.keys[0].last_bytes < max(_LARGE_SHARE * total, _MIN_KEY_BYTES):
        return
    key = task.keys[0]
    share = key.last_bytes / total
    growth = f" and grows by {format_size(round(key.bytes_per_save))} per save" if key.bytes_per_save >= 1 else ""
    reason = f"The key {key.name!r} has {format_size(key.last_bytes)} of {format_size(total)} ({share:.0%}){growth}."
    action = f"Shorten {key.name!r}, store it elsewhere and save a reference, or save incrementally if it rarely changes."
    yield _create(task, "key", action, reason, {"key_bytes": key.last_bytes, "share": share, "bytes_per_save": key.bytes_per_save})


def _create(
    task: TaskStatistics, subject: Literal["interval", "phase", "codec", "key"], action: str, reason: str, numbers: dict[str, float]
) -> Recommendation:
    return Recommendation(task=task.task_name, system=task.system, subject=subject, action=action, reason=reason, numbers=numbers)
