"""Reading a checkpoint back: read, validate, decrypt, decompress, deserialize; from its bases too where it has any."""

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
from ckpt_observe.core.saving.incremental import merged
from ckpt_observe.core.saving.pipeline import Pipeline
from ckpt_observe.core.stores import Store
from ckpt_observe.errors import CheckpointNotFoundError, IntegrityError

T = TypeVar("T")


class Fetcher:
    """Brings states back from a store."""

    def __init__(self, store: Store, pipeline: Pipeline, *, fallback: bool) -> None:
        self.store = store
        self.pipeline = pipeline
        self.fallback = fallback

    def info(self, task: str, id: str) -> CheckpointInfo:
        """The header of one checkpoint, which is that one's."""
        return _asked_for(self.store.info(task, id), task, id)

    def newest(self, task: str) -> CheckpointInfo:
        """The header of the newest checkpoint; where fallback is allowed, of the newest that has one."""
        return self._first_good(task, lambda name, _: self.info(task, name))

    def newest_good(self, task: str) -> Restored[Any]:
        """The newest checkpoint; where fallback is allowed, the newest that is whole."""
        return self._first_good(task, lambda name, skipped: self.one(task, name, skipped))

    def _first_good(self, task: str, get: Callable[[str, tuple[str, ...]], T]) -> T:
        """What `get` gives for the newest id, or for the next where it finds damage and fallback is allowed."""
        skipped: list[str] = []
        for id in self._newest_first(check_name(task, "task")):
            try:
                return get(id, tuple(skipped))
            except CheckpointNotFoundError:
                continue  # removed by somebody else since it was listed
            except IntegrityError as error:
                if not self.fallback:
                    raise
                logging.getLogger(__name__).warning("passed over checkpoint %r of %r: %s", id, task, error)
                skipped.append(id)
        raise CheckpointNotFoundError(f"{task!r} has no {'whole ' if skipped else ''}checkpoint in {self.store.location}")

    def _newest_first(self, task: str) -> Iterator[str]:
        """The newest, damaged or not; the others, which cost more to list, only for who asks on.

        Of those whose header does not read nobody knows the time: they may be newer than any that is listed.
        """
        newest = self.store.newest(task)
        if newest is not None:
            yield newest
            listed = [info.id for info in self.store.list(task)]
            unlisted = sorted(set(self.store.ids(task)).difference(listed), reverse=True)
            yield from (id for id in (*unlisted, *listed) if id != newest)

    def one(self, task: str, id: str, skipped: tuple[str, ...] = ()) -> Restored[Any]:
        info, state = self._own(task, id)
        if info.bases:
            state = merged(info, state, {base: self._base(info, base) for base in info.bases})
        return Restored(state, info, skipped)

    def document(self, task: str, id: str) -> tuple[CheckpointInfo, Buffer]:
        """The serialized state of one checkpoint, checked."""
        info, payload = container.split(steps.read(self.store, task, id))
        steps.validate(_asked_for(info, task, id), payload)
        return info, self.pipeline.unpack(info, payload)

    def _own(self, task: str, id: str) -> tuple[CheckpointInfo, Any]:
        info, data = self.document(task, id)
        return info, self.pipeline.decode(info, data)

    def base_info(self, info: CheckpointInfo, base: str) -> CheckpointInfo:
        """The header of a checkpoint that this one is built on."""
        with _built_on(info, base):
            return self.info(info.task, base)

    def part(self, info: CheckpointInfo, holder: CheckpointInfo, start: int, size: int) -> Buffer:
        """Part of what a checkpoint, or one that it is built on, holds behind its header. It is not checked here."""
        if holder is info:
            return steps.read_part(self.store, info, start, size)
        with _built_on(info, holder.id):
            return steps.read_part(self.store, holder, start, size)

    def _base(self, info: CheckpointInfo, base: str) -> tuple[CheckpointInfo, dict[str, Any]]:
        with _built_on(info, base):
            return self._own(info.task, base)


def _asked_for(info: CheckpointInfo, task: str, id: str) -> CheckpointInfo:
    if info.task != task or info.id != id:
        message = f"what is kept as checkpoint {id!r} of {task!r} is {info.id!r} of {info.task!r}"
        raise IntegrityError(message, code="integrity.malformed")
    return info


@contextmanager
def _built_on(info: CheckpointInfo, base: str) -> Iterator[None]:
    try:
        yield
    except CheckpointNotFoundError as error:
        message = f"checkpoint {info.id!r} of {info.task!r} is built on {base!r}, which is gone"
        raise IntegrityError(message, code="integrity.broken_base") from error
