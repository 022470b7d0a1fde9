"""How long operations of one kind usually take, and why one of them took longer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median, quantiles
from typing import Any, Final

import msgspec

from ckpt_observe.explain.wording import kind_name, phase_seconds
from ckpt_observe.query import ObservedOperation
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support.formatting import format_duration, format_ratio, format_size

MIN_COUNT: Final = 5
"""Operations that are needed to say what is usual."""
SLOW: Final = 1.5
"""An operation that takes longer than this multiple of the median, and longer than 95 % of the others, is slow."""
_UNCHANGED: Final = (0.8, 1.25)
"""Ratios of sizes that count as the same size."""

# fmt: off
SLOW_PHASES: Final = {
    "stage": "Look for memory pressure and for a slow copy from the GPU: pinned memory makes it faster.",
    "serialize": "Save less state, or use a faster format. The largest keys are where to begin.",
    "compress": "Use a faster codec or a lower level, such as zstd level 3.",
    "encrypt": "Look at the load of the CPU. Encrypt less often, or save less state.",
    "write": "Look at the load and the free space of the disk or server that stores the checkpoints.",
    "commit": "Look at locks and at the latency of the store: other writers, backups, a slow disk under the database.",
    "validate": "Look at the disk or server from which the checkpoint is read back.",
    "read": "Look at the load of the disk or server that stores the checkpoints, and at the network between.",
    "decrypt": "Look at the load of the CPU.",
    "decompress": "Look at the load of the CPU. A codec such as zstd or lz4 decompresses faster.",
    "deserialize": "Load fewer keys if the library can, or save with a faster format.",
    "apply": "Look at the program's own code that applies the state, and at the copy to the GPU.",
    "wait": "It waited for a lock, a connection or the save before it: let fewer callers use the store at once, or save less often.",
    "plan": "Look at the slowest rank and at the network between the ranks.",
    "finalize": "Look at the disk or server that stores the checkpoints: closing a file waits for it.",
    "digest": "Look at the load of the CPU.",
    "retain": "Many checkpoints are removed at once, or the store is slow to remove: keep fewer, or prune outside the run.",
    "remove": "Look at the store: removing many small files or rows takes long.",
    "hook": "Look at the functions that the program has registered: they run on its own time.",
}
# fmt: on
"""What to look at if a phase takes longer than usual."""


class Usual(msgspec.Struct, frozen=True):
    """What is usual for one kind of operation of one task."""

    count: int
    median_seconds: float
    percentile_95_seconds: float
    median_bytes: float | None
    """Stored bytes. None if they are not known."""
    phases: dict[str, float]
    """Median of the seconds in each phase."""


def usual_values(operations: Sequence[ObservedOperation], now_unix_nano: int) -> Usual | None:
    """Return what is usual among successful operations, or None if there are too few of them."""
    if len(operations) < MIN_COUNT:
        return None
    seconds = [operation.seconds(now_unix_nano) for operation in operations]
    sizes = [size for operation in operations if (size := operation.stored_bytes) is not None]
    phases = [phase_seconds(operation, now_unix_nano) for operation in operations]
    return Usual(
        count=len(operations),
        median_seconds=median(seconds),
        percentile_95_seconds=quantiles(seconds, n=20, method="inclusive")[-1],
        median_bytes=median(sizes) if sizes else None,
        phases={name: median(each.get(name, 0.0) for each in phases) for name in {name for each in phases for name in each}},
    )


def is_slow(seconds: float, usual: Usual | None) -> bool:
    """Return whether an operation that took so long, or has been running for so long, took longer than is usual."""
    return usual is not None and seconds > SLOW * usual.median_seconds and seconds > usual.percentile_95_seconds


def slowest_phase(operation: ObservedOperation, usual: Usual, now_unix_nano: int) -> tuple[str, float, float] | None:
    """Return the phase that explains why it was slow, its seconds and the usual ones. None if no phase explains half of the excess."""
    seconds = phase_seconds(operation, now_unix_nano)
    excess, name = max(((seconds[name] - usual.phases.get(name, 0.0), name) for name in seconds), default=(0.0, ""))
    is_explained = excess >= (operation.seconds(now_unix_nano) - usual.median_seconds) / 2
    return (name, seconds[name], usual.phases.get(name, 0.0)) if name and is_explained else None


def describe_straggler(operation: ObservedOperation) -> Iterator[str]:
    """Yield for which rank a distributed save waited, and in which phase."""
    attributes = operation.attributes
    if names.STRAGGLER_RANK in attributes:
        rank, phase, delay = (attributes.get(name) for name in (names.STRAGGLER_RANK, names.STRAGGLER_PHASE, names.STRAGGLER_DELAY))
        by_time = f" by {format_duration(delay)}" if isinstance(delay, int | float) else ""
        yield f"The save waited for rank {rank}, which was slower than the other ranks{by_time} in {phase}."


def compare(operation: ObservedOperation, usual: Usual | None, count: int, now_unix_nano: int) -> Iterator[str]:
    """Yield sentences about how its duration compares with the usual, and what explains the difference. `count` others are recorded."""
    what = "successful runs" if operation.kind == "task" else f"successful {kind_name(operation)}s"
    what += f" of {operation.task_title}" if operation.task_title else ""
    if usual is None:
        yield f"It is not known what is usual: {count} other {what} are recorded, and a comparison needs {MIN_COUNT}."
        return
    seconds, typical = operation.seconds(now_unix_nano), usual.median_seconds
    reference = f"{format_duration(typical)} (median of {usual.count} {what})"
    if not is_slow(seconds, usual):
        slowest = format_duration(usual.percentile_95_seconds)
        yield f"That is not unusual: the usual time is {reference}, and one in twenty takes longer than {slowest}."
        return
    ratio = seconds / typical if typical > 0 else 0.0
    times = f"{f'{ratio:,.0f}' if ratio >= 100 else format_ratio(ratio)} times as long as usual" if ratio else "longer than usual"
    yield f"{'So far that is' if operation.is_running else 'That is'} {times}: the usual time is {reference}."
    yield from _explain_excess(operation, usual, now_unix_nano)


def _explain_excess(operation: ObservedOperation, usual: Usual, now_unix_nano: int) -> Iterator[str]:
    phase = slowest_phase(operation, usual, now_unix_nano)
    if phase is not None:
        name, seconds, typical = phase
        yield f"Most of the difference is in {name}: {format_duration(seconds)} instead of {format_duration(typical)}."
    elif operation.phases:
        yield "No single phase explains the difference."
    yield from _compare_sizes(operation, usual)
    yield from _describe_cpu(operation, operation.seconds(now_unix_nano))
    if phase is not None and phase[0] in SLOW_PHASES and not operation.is_running:
        yield SLOW_PHASES[phase[0]]


def _compare_sizes(operation: ObservedOperation, usual: Usual) -> Iterator[str]:
    size = operation.stored_bytes
    if size is None or not usual.median_bytes:
        return
    ratio, (smaller, larger) = size / usual.median_bytes, _UNCHANGED
    if smaller <= ratio <= larger:
        yield f"Its size is not the reason: it has {format_size(size)}, as usual."
    else:
        yield f"It has {format_size(size)}, which is {format_ratio(ratio)} times the usual size ({format_size(round(usual.median_bytes))})."


def _describe_cpu(operation: ObservedOperation, seconds: float) -> Iterator[str]:
    cpu: Any = operation.attributes.get(names.CPU_TIME)
    if not isinstance(cpu, int | float) or seconds <= 0:
        return
    share = min(max(cpu / seconds, 0.0), 1.0)
    if share < 0.25:
        yield f"Its thread used the CPU for {share:.0%} of the time; the rest it waited for a disk, a server, a lock or another thread."
    elif share > 0.75:
        yield f"Its thread used the CPU for {share:.0%} of the time: it computed, and did not wait."
