"""Resolves a reference to a checkpoint: an id, `latest~2`, a step or a time."""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Sequence
from typing import Protocol, TypeVar

from ckpt_observe.core.loading.fetch import Fetcher
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError, IntegrityError
from ckpt_observe.support.advice import add_advice


class Referable(Protocol):
    """What a reference can refer to: a header, or a checkpoint of another library."""

    @property
    def id(self) -> str: ...
    @property
    def step(self) -> int | None: ...
    @property
    def created(self) -> dt.datetime: ...


Checkpoint = TypeVar("Checkpoint", bound=Referable)

_LATEST = re.compile(r"latest(?:~(\d{1,9}))?").fullmatch


def resolve(fetcher: Fetcher, task: str, reference: str) -> CheckpointInfo:
    """Return the header of the referenced checkpoint.

    IntegrityError if the header of the checkpoint with this id is damaged; for `latest` and `latest~n`, if a damaged header makes the
    position uncertain and fallback is off. Steps and times only find checkpoints with a readable header.
    """
    store, latest = fetcher.store, _LATEST(reference)
    back = int(latest[1] or 0) if latest else None
    if back == 0:
        return fetcher.newest(task)
    infos = store.list(task)
    if back:
        return select(infos, task, f"latest~{back - _is_newest_unreadable(fetcher, task, infos)}")
    try:
        return select(infos, task, reference)
    except CheckpointNotFoundError:
        if reference in store.ids(task):
            return fetcher.info(task, reference)
        raise


def _is_newest_unreadable(fetcher: Fetcher, task: str, infos: Sequence[CheckpointInfo]) -> bool:
    """Return whether the newest checkpoint has an unreadable header.

    Raise IntegrityError if another checkpoint has one: its position is unknown, so `latest~n` could miscount. With fallback, only warn.
    """
    newest = fetcher.store.newest(task)
    unreadable = set(fetcher.store.ids(task)).difference(info.id for info in infos)
    for id in sorted(unreadable - {newest}):
        try:
            fetcher.info(task, id)
        except CheckpointNotFoundError:
            continue  # removed since it was listed
        except IntegrityError as error:
            message = f"cannot count back in {task!r}: checkpoint {id!r} is damaged, so its position is unknown: {error}"
            if not fetcher.fallback:
                raise IntegrityError(message, code=error.code) from error
            logging.getLogger(__name__).warning("%s", message)
    return newest in unreadable


def select(infos: Sequence[Checkpoint], task: str, reference: str) -> Checkpoint:
    """Return the checkpoint of `infos` to which the reference refers. `infos` are ordered newest first.

    `latest` and `latest~2` count back from the newest; `step:100` is the newest with that step; `at:<ISO time>` the newest that was
    created by then (UTC unless it has a zone); anything else is an id.
    """
    if (latest := _LATEST(reference)) is not None:
        matches = infos[int(latest[1] or 0) :]
    elif reference.startswith("step:"):
        matches = [info for info in infos if str(info.step) == reference[5:]]
    elif reference.startswith("at:"):
        moment = _time(reference[3:])
        matches = [info for info in infos if info.created <= moment]
    else:
        matches = [info for info in infos if info.id == reference]
    if not matches:
        message = f"{task!r} has no checkpoint {reference!r} among its {len(infos)} readable ones"
        raise CheckpointNotFoundError(add_advice(message, "not_found.checkpoint"))
    return matches[0]


def _time(text: str) -> dt.datetime:
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not a time; write it as in 2026-01-31T12:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
