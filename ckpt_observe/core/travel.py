"""Which checkpoint is meant: by id, by age, by step, by time."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence

from ckpt_observe.core.fetch import Fetcher
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError

_LATEST = re.compile(r"latest(?:~(\d{1,9}))?").fullmatch


def resolve(fetcher: Fetcher, task: str, reference: str) -> CheckpointInfo:
    """The checkpoint that the reference names. A damaged one counts too, and says what is wrong with it."""
    store, latest = fetcher.store, _LATEST(reference)
    back = int(latest[1] or 0) if latest else None
    if back == 0:
        return fetcher.newest(task)
    known, newest = store.list(task), store.newest(task)
    if back and newest is not None and newest not in {info.id for info in known}:
        reference = f"latest~{back - 1}"
    try:
        return among(known, task, reference)
    except CheckpointNotFoundError:
        if reference in store.ids(task):
            return fetcher.info(task, reference)
        raise


def among(infos: Sequence[CheckpointInfo], task: str, reference: str) -> CheckpointInfo:
    """The one of these, newest first, that the reference names.

    `latest` and `latest~2` count back from the newest; `step:100` is the newest of that step; `at:<ISO time>` the newest
    not made after it; anything else is an id.
    """
    if (latest := _LATEST(reference)) is not None:
        matching = infos[int(latest[1] or 0) :]
    elif reference.startswith("step:"):
        matching = [info for info in infos if str(info.step) == reference[5:]]
    elif reference.startswith("at:"):
        moment = _time(reference[3:])
        matching = [info for info in infos if info.created <= moment]
    else:
        matching = [info for info in infos if info.id == reference]
    if not matching:
        raise CheckpointNotFoundError(f"{task!r} has no checkpoint {reference!r} among its {len(infos)}")
    return matching[0]


def _time(text: str) -> dt.datetime:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"a time is written like 2026-01-31T12:00Z, not {text!r}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
