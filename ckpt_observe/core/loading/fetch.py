"""Reads a checkpoint back: read, validate, decrypt, decompress, deserialize; also from its bases if it is incremental."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ckpt_observe.core import steps
from ckpt_observe.core.format import container
from ckpt_observe.core.format.blob import Buffer
from ckpt_observe.core.format.names import check_name
from ckpt_observe.core.model import CheckpointInfo, Restored
from ckpt_observe.core.saving.incremental import merge_bases
from ckpt_observe.core.saving.pipeline import Pipeline
from ckpt_observe.core.stores import Store
from ckpt_observe.errors import CheckpointNotFoundError, IntegrityError

T = TypeVar("T")


class Fetcher:
    """Reads headers and states from a store. With `fallback`, reading the newest checkpoint skips damaged ones."""

    def __init__(self, store: Store, pipeline: Pipeline, *, fallback: bool) -> None:
        self.store = store
        self.pipeline = pipeline
        self.fallback = fallback

    def info(self, task: str, id: str) -> CheckpointInfo:
        """Return the header of a checkpoint. Raise IntegrityError if the store has another checkpoint under this id."""
        return _check_identity(self.store.info(task, id), task, id)

    def newest(self, task: str) -> CheckpointInfo:
        """Return the header of the newest checkpoint; with fallback, of the newest whose header is readable."""
        return self._first_good(task, lambda name, _: self.info(task, name))

    def newest_good(self, task: str) -> Restored[Any]:
        """Load the newest checkpoint; with fallback, the newest that is not damaged."""
        return self._first_good(task, lambda name, skipped: self.load(task, name, skipped))

    def _first_good(self, task: str, get: Callable[[str, tuple[str, ...]], T]) -> T:
        """Return `get(id, skipped)` for the newest id. With fallback, try the next id if that checkpoint is damaged.

        `skipped` are the ids of the damaged ones so far.
        """
        skipped: list[str] = []
        for id in self._newest_first(check_name(task, "task")):
            try:
                return get(id, tuple(skipped))
            except CheckpointNotFoundError:
                continue  # removed by another process since it was listed
            except IntegrityError as error:
                if not self.fallback:
                    raise
                logging.getLogger(__name__).warning("Skipped damaged checkpoint %r of %r: %s", id, task, error)
                skipped.append(id)
        raise CheckpointNotFoundError(f"{task!r} has no {'undamaged ' if skipped else ''}checkpoint in {self.store.location}")

    def _newest_first(self, task: str) -> Iterator[str]:
        """Yield the newest id, damaged or not, then the others, which are listed only if needed because that costs more.

        Checkpoints with an unreadable header come before the listed ones: their time is unknown, so they may be newer.
        """
        newest = self.store.newest(task)
        if newest is not None:
            yield newest
            listed = [info.id for info in self.store.list(task)]
            unlisted = sorted(set(self.store.ids(task)).difference(listed), reverse=True)
            yield from (id for id in (*unlisted, *listed) if id != newest)

    def load(self, task: str, id: str, skipped: tuple[str, ...] = ()) -> Restored[Any]:
        info, state = self._load_values(task, id)
        if info.bases:
            state = merge_bases(info, state, {base: self._base(info, base) for base in info.bases})
        return Restored(state, info, skipped)

    def document(self, task: str, id: str) -> tuple[CheckpointInfo, Buffer]:
        """Return header and serialized state of a checkpoint, after checking its digest. Keys that bases hold are not included."""
        info, payload = container.split(steps.read(self.store, task, id))
        steps.validate(_check_identity(info, task, id), payload)
        return info, self.pipeline.unpack(info, payload)

    def _load_values(self, task: str, id: str) -> tuple[CheckpointInfo, Any]:
        info, data = self.document(task, id)
        return info, self.pipeline.decode(info, data)

    def base_info(self, info: CheckpointInfo, base: str) -> CheckpointInfo:
        """Return the header of a base of this checkpoint. IntegrityError if it no longer exists."""
        with _reading_base(info, base):
            return self.info(info.task, base)

    def part(self, info: CheckpointInfo, holder: CheckpointInfo, start: int, size: int) -> Buffer:
        """Read part of the payload of a checkpoint or of one of its bases. The bytes are not checked here."""
        if holder is info:
            return steps.read_part(self.store, info, start, size)
        with _reading_base(info, holder.id):
            return steps.read_part(self.store, holder, start, size)

    def _base(self, info: CheckpointInfo, base: str) -> tuple[CheckpointInfo, dict[str, Any]]:
        with _reading_base(info, base):
            return self._load_values(info.task, base)


def _check_identity(info: CheckpointInfo, task: str, id: str) -> CheckpointInfo:
    if info.task != task or info.id != id:
        message = f"the store has checkpoint {info.id!r} of {info.task!r} in the place of {id!r} of {task!r}; was a file renamed or copied?"
        raise IntegrityError(message, code="integrity.malformed")
    return info


@contextmanager
def _reading_base(info: CheckpointInfo, base: str) -> Iterator[None]:
    try:
        yield
    except CheckpointNotFoundError as error:
        message = f"checkpoint {info.id!r} of {info.task!r} is built on {base!r}, which no longer exists"
        raise IntegrityError(message, code="integrity.broken_base") from error
