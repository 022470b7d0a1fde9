"""How a store grows: sizes, rates and largest keys of each task, and when its disk will be full."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ckpt_observe.core import CheckpointInfo
from ckpt_observe.query import KeyGrowth
from ckpt_observe.query.statistics import key_growth, slope

MIN_SECONDS: Final = 60.0
"""A task has no rate if its checkpoints are from a shorter time: a first try saves a few times within milliseconds."""


class TaskGrowth(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="task"):
    """The checkpoints of one task in a store."""

    task: str
    checkpoints: int
    stored_size: int
    """Bytes of all checkpoints."""
    last_size: int | None = None
    """Stored bytes of the newest checkpoint."""
    compression_ratio: float | None = None
    """Serialized / stored bytes."""
    first_created: dt.datetime | None = None
    last_created: dt.datetime | None = None
    seconds_between: float | None = None
    """Mean time between two checkpoints."""
    bytes_per_checkpoint: float = 0.0
    """By how much each checkpoint is larger than the one before: slope of the line that fits best."""
    bytes_per_day: float | None = None
    """What is written per day, at the present rate and size; None if the checkpoints are from less than a minute."""
    keys: tuple[KeyGrowth, ...] = ()
    """Largest first."""


def measure_tasks(infos: Iterable[CheckpointInfo]) -> list[TaskGrowth]:
    """Return the growth of each task, the largest first. `infos` are in any order."""
    by_task: dict[str, list[CheckpointInfo]] = defaultdict(list)
    for info in infos:
        by_task[info.task].append(info)
    return sorted((_measure(task, rows) for task, rows in by_task.items()), key=lambda growth: -growth.stored_size)


def _measure(task: str, infos: list[CheckpointInfo]) -> TaskGrowth:
    infos.sort(key=lambda info: info.created)
    sizes = [info.stored_size for info in infos]
    first, last = infos[0].created, infos[-1].created
    seconds = (last - first).total_seconds() / (len(infos) - 1) if len(infos) > 1 else 0.0
    serialized = sum(info.serialized_size for info in infos)
    names = dict.fromkeys(name for info in infos for name in info.keys)
    key_sizes = {name: [info.keys[name].size for info in infos if name in info.keys] for name in names}
    keys = [key_growth(name, sizes, slope(sizes)) for name, sizes in key_sizes.items()]
    return TaskGrowth(
        task=task,
        checkpoints=len(infos),
        stored_size=sum(sizes),
        last_size=sizes[-1],
        compression_ratio=serialized / sum(sizes) if sum(sizes) else None,
        first_created=first,
        last_created=last,
        seconds_between=seconds or None,
        bytes_per_checkpoint=slope(sizes),
        bytes_per_day=sizes[-1] * 86400 / seconds if _has_rate(len(infos), seconds) else None,
        keys=tuple(sorted(keys, key=lambda key: -key.last_bytes)),
    )


def seconds_until_full(free: float, tasks: Sequence[TaskGrowth]) -> float | None:
    """Return when free space is used up if nothing is removed, and every task goes on at its rate, with checkpoints that go on growing.

    None: no task has a rate. After t seconds, a task has written n = t / seconds_between checkpoints, with n * last_size +
    n**2 * bytes_per_checkpoint / 2 bytes.
    """
    rate = acceleration = 0.0
    for task in tasks:
        if task.seconds_between and task.last_size and _has_rate(task.checkpoints, task.seconds_between):
            rate += task.last_size / task.seconds_between
            acceleration += max(task.bytes_per_checkpoint, 0.0) / task.seconds_between**2
    if not rate:
        return None
    return free / rate if not acceleration else 2 * free / (rate + math.sqrt(rate * rate + 2 * acceleration * free))


def _has_rate(checkpoints: int, seconds_between: float) -> bool:
    return (checkpoints - 1) * seconds_between >= MIN_SECONDS
