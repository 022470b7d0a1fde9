"""Checks stored checkpoints by reading them as a load does, and reports which ones would fail and why."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import msgspec

from ckpt_observe.core import steps
from ckpt_observe.core.format.names import check_name
from ckpt_observe.core.loading.fetch import Fetcher
from ckpt_observe.core.stores.store import not_found
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, ConfigError, IntegrityError

Quarantine = Callable[[str, str], None]
"""Moves the checkpoint with this task and id aside."""


class Finding(msgspec.Struct, frozen=True):
    """The result of checking one checkpoint."""

    task: str
    id: str
    good: bool
    code: str = ""
    """Code of the error if the checkpoint is not good."""
    message: str = ""
    quarantined: bool = False
    altered: tuple[str, ...] = ()
    """Top-level keys that are missing or have a value of another type than was saved, although the bytes are intact."""


def verify(fetcher: Fetcher, task: str | None, id: str | None, *, sample: int | None, quarantine: Quarantine | None) -> list[Finding]:
    """Check one checkpoint, those of a task, or all; with `sample`, that many at random. `quarantine` is called for damaged ones."""
    if id is not None:
        if task is None:
            raise ConfigError("an id belongs to a task; pass the task too")
        finding = _verify_one(fetcher, check_name(task, "task"), check_name(id, "checkpoint id"), quarantine)
        if finding is None:
            raise not_found(task, id, fetcher.store.location)
        return [finding]
    tasks = None if task is None else (check_name(task, "task"),)
    names = steps.list_names(fetcher.store, tasks)
    if sample is not None and sample < 0:
        raise ConfigError(f"`sample` must be 0 or more, not {sample}")
    if sample is not None and sample < len(names):
        names = random.SystemRandom().sample(names, sample)  # not the program's generator: a training run relies on its sequence
    return [finding for name, id in names if (finding := _verify_one(fetcher, name, id, quarantine)) is not None]


def _verify_one(fetcher: Fetcher, task: str, id: str, quarantine: Quarantine | None) -> Finding | None:
    try:
        restored = fetcher.load(task, id)
    except CheckpointNotFoundError:
        return None  # removed since it was listed
    except CheckpointError as error:
        moved = quarantine is not None and isinstance(error, IntegrityError) and _move_aside(quarantine, task, id)
        return Finding(task, id, good=False, code=error.code, message=str(error), quarantined=moved)
    return Finding(task, id, good=True, altered=restored.altered)


def _move_aside(quarantine: Quarantine, task: str, id: str) -> bool:
    """Move a damaged checkpoint aside; return whether that worked. A failure is logged, and the other checkpoints are still checked."""
    try:
        quarantine(task, id)
    except CheckpointError as error:
        logging.getLogger(__name__).warning("Cannot move damaged checkpoint %r of %r aside: %s", id, task, error)
        return False
    return True
