"""The integrity checker: reads checkpoints as a load would, and says which would fail and why."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

import msgspec

from ckpt_observe.core.format.names import check_name
from ckpt_observe.core.loading.fetch import Fetcher
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, ConfigError, IntegrityError

Move = Callable[[str, str], None]
"""Puts the checkpoint of a task and id out of the way."""


class Finding(msgspec.Struct, frozen=True):
    """What was found about one checkpoint."""

    task: str
    id: str
    good: bool
    code: str = ""
    """Error code where it is not good."""
    message: str = ""
    quarantined: bool = False
    altered: tuple[str, ...] = ()
    """Top-level keys that come back other than they were saved, of a checkpoint whose bytes are whole."""


def examine(fetcher: Fetcher, task: str | None, id: str | None, *, sample: int | None, move: Move | None) -> list[Finding]:
    """Check one checkpoint, those of a task, or all; with `sample` that many of them, chosen at random. Damaged ones go to `move`."""
    if id is not None:
        if task is None:
            raise ConfigError("a checkpoint is verified by its task and id, not by its id alone")
        finding = _examined(fetcher, check_name(task, "task"), check_name(id, "checkpoint id"), move)
        if finding is None:
            raise CheckpointNotFoundError(f"{task!r} has no checkpoint {id!r} in {fetcher.store.location}")
        return [finding]
    tasks = fetcher.store.tasks() if task is None else (check_name(task, "task"),)
    names = [(name, id) for name in tasks for id in fetcher.store.ids(name)]
    if sample is not None and sample < 0:
        raise ConfigError(f"a sample has 0 checkpoints or more, not {sample}")
    if sample is not None and sample < len(names):
        names = random.SystemRandom().sample(names, sample)  # never the program's own generator: a training run counts on it
    return [finding for name, id in names if (finding := _examined(fetcher, name, id, move)) is not None]


def _examined(fetcher: Fetcher, task: str, id: str, move: Move | None) -> Finding | None:
    try:
        restored = fetcher.one(task, id)
    except CheckpointNotFoundError:
        return None  # removed since it was listed
    except CheckpointError as error:
        moved = move is not None and isinstance(error, IntegrityError) and _moved(move, task, id)
        return Finding(task, id, good=False, code=error.code, message=str(error), quarantined=moved)
    return Finding(task, id, good=True, altered=restored.altered)


def _moved(move: Move, task: str, id: str) -> bool:
    """Whether it could be moved: the others are looked at all the same."""
    try:
        move(task, id)
    except CheckpointError as error:
        logging.getLogger(__name__).warning("damaged checkpoint %r of %r was not moved: %s", id, task, error)
        return False
    return True
