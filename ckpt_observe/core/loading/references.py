"""Which checkpoint is meant: by id, by age, by step, by time."""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Sequence

from ckpt_observe.core.loading.fetch import Fetcher
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.errors import CheckpointNotFoundError, ConfigError, IntegrityError

_LATEST = re.compile(r"latest(?:~(\d{1,9}))?").fullmatch


def resolve(fetcher: Fetcher, task: str, reference: str) -> CheckpointInfo:
    """The checkpoint that the reference names. Named by id or counted, a damaged one counts too, and says what is wrong with it.

    By step and time only those are found whose header reads.
    """
    store, latest = fetcher.store, _LATEST(reference)
    back = int(latest[1] or 0) if latest else None
    if back == 0:
        return fetcher.newest(task)
    known = store.list(task)
    if back:
        return among(known, task, f"latest~{back - _unlisted_newest(fetcher, task, known)}")
    try:
        return among(known, task, reference)
    except CheckpointNotFoundError:
        if reference in store.ids(task):
            return fetcher.info(task, reference)
        raise


def _unlisted_newest(fetcher: Fetcher, task: str, known: Sequence[CheckpointInfo]) -> bool:
    """Whether the newest is one whose header does not read. Any other such may be anywhere: it is an error, or passed over and said."""
    newest = fetcher.store.newest(task)
    unlisted = set(fetcher.store.ids(task)).difference(info.id for info in known)
    for id in sorted(unlisted - {newest}):
        try:
            fetcher.info(task, id)
        except CheckpointNotFoundError:
            continue  # removed since it was listed
        except IntegrityError as error:
            message = f"counting back in {task!r}, nobody knows where checkpoint {id!r} belongs, which is damaged: {error}"
            if not fetcher.fallback:
                raise IntegrityError(f"{message}; verify(quarantine=True) moves it aside", code=error.code) from error
            logging.getLogger(__name__).warning("%s", message)
    return newest in unlisted


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
