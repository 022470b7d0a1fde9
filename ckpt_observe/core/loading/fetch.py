"""Reads a checkpoint back: read, validate, decrypt, decompress, deserialize; also from its bases if it is incremental."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ckpt_observe.core import steps
from ckpt_observe.core.format.blob import Buffer
from ckpt_observe.core.format.names import check_name
from ckpt_observe.core.model import CheckpointInfo, Restored
from ckpt_observe.core.saving.incremental import merge_bases
from ckpt_observe.core.saving.pipeline import Pipeline
from ckpt_observe.core.stores import Store
from ckpt_observe.core.stores.store import not_found
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, IntegrityError

T = TypeVar("T")
DAMAGE_ADVICE = "fallback=True loads an older one, and verify(quarantine=True) moves damaged ones aside"


class Fetcher:
    """Reads headers and states from a store. With `fallback`, reading the newest checkpoint skips damaged ones."""

    def __init__(self, store: Store, pipeline: Pipeline, *, fallback: bool) -> None:
        self.store = store
        self.pipeline = pipeline
        self.fallback = fallback

    def info(self, task: str, id: str) -> CheckpointInfo:
        """Return the header of a checkpoint. Raise IntegrityError if the store has another checkpoint under this id."""
        with self._naming(task, id):
            return steps.read_header(self.store, task, id)

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
        damage: dict[str, IntegrityError] = {}
        for id in self._newest_first(check_name(task, "task")):
            try:
                return get(id, tuple(damage))
            except CheckpointNotFoundError:
                continue  # removed by another process since it was listed
            except IntegrityError as error:
                if not self.fallback:
                    raise
                logging.getLogger(__name__).warning("Skipped damaged checkpoint %r of %r: %s", id, task, error)
                damage[id] = error
        if damage:
            raise _all_damaged(task, self.store.location, damage)
        raise not_found(task, None, self.store.location)

    def _newest_first(self, task: str) -> Iterator[str]:
        """Yield the newest id, damaged or not, then the others, which are listed only if needed because that costs more."""
        newest = steps.find_newest(self.store, task)
        if newest is not None:
            yield newest
            yield from (id for id in steps.list_ids(self.store, task) if id != newest)

    def load(self, task: str, id: str, skipped: tuple[str, ...] = ()) -> Restored[Any]:
        try:  # without `_naming`, for speed: every load calls this
            info, state = self._load_values(task, id)
            if info.bases:
                state = merge_bases(info, state, {base: self._base(info, base) for base in info.bases})
            return Restored(state, info, skipped)
        except CheckpointError as error:
            self._add_name(error, task, id)
            raise

    @contextmanager
    def _naming(self, task: str, id: str) -> Iterator[None]:
        """Add the checkpoint to errors of the block, and to those about damage what to do."""
        try:
            yield
        except CheckpointError as error:
            self._add_name(error, task, id)
            raise

    def _add_name(self, error: CheckpointError, task: str, id: str) -> None:
        if error.checkpoint_id is None and not isinstance(error, CheckpointNotFoundError):
            error.checkpoint_id = id
            name = f"checkpoint {id!r} of {task!r} in {self.store.location}"
            message = str(error) if repr(id) in str(error) else f"{name}: {error}"
            error.args = (f"{message}; {DAMAGE_ADVICE}" if isinstance(error, IntegrityError) else message,)

    def document(self, task: str, id: str) -> tuple[CheckpointInfo, Buffer]:
        """Return header and serialized state of a checkpoint, after checking its digest. Keys that bases hold are not included."""
        info, payload = steps.validate(steps.read(self.store, task, id), task, id)
        return info, self.pipeline.unpack(info, payload)

    def _load_values(self, task: str, id: str) -> tuple[CheckpointInfo, Any]:
        info, data = self.document(task, id)
        return info, self.pipeline.decode(info, data)

    def base_info(self, info: CheckpointInfo, base: str) -> CheckpointInfo:
        """Return the header of a base of this checkpoint. IntegrityError if it no longer exists."""
        with self._naming(info.task, info.id), _reading_base(info, base):
            return steps.read_header(self.store, info.task, base)

    def part(self, info: CheckpointInfo, holder: CheckpointInfo, start: int, size: int) -> Buffer:
        """Read part of the payload of a checkpoint or of one of its bases. The bytes are not checked here."""
        with self._naming(info.task, info.id):
            if holder is info:
                return steps.read_part(self.store, info, start, size)
            with _reading_base(info, holder.id):
                return steps.read_part(self.store, holder, start, size)

    def _base(self, info: CheckpointInfo, base: str) -> tuple[CheckpointInfo, dict[str, Any]]:
        with _reading_base(info, base):
            return self._load_values(info.task, base)


def _all_damaged(task: str, location: str, damage: dict[str, IntegrityError]) -> IntegrityError:
    """Return the error for a task whose checkpoints are all damaged. `damage` is by id, newest first."""
    id, newest = next(iter(damage.items()))
    reason = str(newest).removesuffix(f"; {DAMAGE_ADVICE}")
    message = f"all {len(damage)} checkpoints of {task!r} in {location} are damaged; the newest, {id!r}: {reason}"
    advice = "restore a backup, or begin anew after verify(quarantine=True), which moves them aside"
    error = IntegrityError(f"{message}; {advice}", code=newest.code)
    error.checkpoint_id, error.damaged_count, error.__cause__ = id, len(damage), newest
    return error


@contextmanager
def _reading_base(info: CheckpointInfo, base: str) -> Iterator[None]:
    try:
        yield
    except CheckpointNotFoundError as error:
        message = f"checkpoint {info.id!r} of {info.task!r} is built on {base!r}, which no longer exists"
        raise IntegrityError(message, code="integrity.broken_base") from error
    except IntegrityError as error:
        message = f"checkpoint {info.id!r} of {info.task!r} is built on {base!r}, which is damaged: {error}"
        raise IntegrityError(message, code=error.code) from error
