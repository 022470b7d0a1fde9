"""Restore drills: whether the newest checkpoint of a task can be loaded, how old it is, and how long that takes."""

from __future__ import annotations

import datetime as dt
import time

import msgspec

from ckpt_observe.core.impacts import add_impact
from ckpt_observe.core.loading.fetch import Fetcher
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.errors import CheckpointError


class Drill(msgspec.Struct, frozen=True):
    """The result of a restore drill: a checkpoint that can be loaded."""

    info: CheckpointInfo
    age: float
    """Seconds since the checkpoint was saved: the work that a crash now would lose."""
    seconds: float
    """Time to recover: reading, checking and decoding the checkpoint."""
    altered: tuple[str, ...]
    """As in `Restored`."""
    skipped: tuple[str, ...]
    """As in `Restored`."""


def rehearse_restore(fetcher: Fetcher, task: str) -> Drill:
    """Load the newest checkpoint as a restore does. Raise what that would raise."""
    start = time.monotonic()
    try:
        restored = fetcher.newest_good(task)
    except CheckpointError as error:
        add_impact(error, "load")
        raise
    seconds = time.monotonic() - start
    age = (dt.datetime.now(dt.UTC) - restored.info.created).total_seconds()
    return Drill(restored.info, age, seconds, restored.altered, restored.skipped)
