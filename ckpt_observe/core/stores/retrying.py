"""A store that tries again, where trying again can help. No store does so by itself."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.query import Query
from ckpt_observe.core.stores.base import Store
from ckpt_observe.core.stores.wrapper import StoreWrapper
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, ConflictError

T = TypeVar("T")

_random = random.SystemRandom()  # never the program's own generator: a training run counts on it


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How often to try, and how long to wait between: doubled each time, and shortened at random so that many do not come back at once."""

    attempts: int = 5
    first_delay: float = 0.1
    longest_delay: float = 10.0
    sleep: Callable[[float], object] = time.sleep

    def wait(self, attempt: int) -> None:
        self.sleep(min(self.longest_delay, self.first_delay * 2**attempt) * _random.uniform(0.5, 1))


class RetryingStore(StoreWrapper):
    """Repeats what failed with an error that says `retryable`, and nothing else."""

    def __init__(self, inner: Store, patience: Patience | None = None) -> None:
        super().__init__(inner)
        self._patience = patience or Patience()

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        """Safe to repeat: a conflict with the very bytes we meant to write is our own earlier attempt, whose answer was lost."""
        repeated = False

        def attempt() -> None:
            nonlocal repeated
            try:
                self.inner.put(info, blob)
            except ConflictError:
                if not repeated or not self._is_there(info, blob):
                    raise
            finally:
                repeated = True

        self._try(attempt)

    def put_many(self, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        for info, blob in batch:
            self.put(info, blob)

    def get(self, task: str, id: str) -> Buffer:
        return self._try(lambda: self.inner.get(task, id))

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        return self._try(lambda: self.inner.get_range(task, id, start, size))

    def info(self, task: str, id: str) -> CheckpointInfo:
        return self._try(lambda: self.inner.info(task, id))

    def size(self, task: str, id: str) -> int:
        return self._try(lambda: self.inner.size(task, id))

    def delete(self, task: str, id: str) -> None:
        self._try_once_effective(lambda: self.inner.delete(task, id))

    def discard(self, task: str, id: str) -> None:
        self._try_once_effective(lambda: self.inner.discard(task, id))

    def quarantine(self, task: str, id: str) -> None:
        self._try_once_effective(lambda: self.inner.quarantine(task, id))

    def list(self, task: str) -> CheckpointInfos:
        return self._try(lambda: self.inner.list(task))

    def find(self, query: Query) -> CheckpointInfos:
        return self._try(lambda: self.inner.find(query))

    def ids(self, task: str) -> tuple[str, ...]:
        return self._try(lambda: self.inner.ids(task))

    def newest(self, task: str) -> str | None:
        return self._try(lambda: self.inner.newest(task))

    def tasks(self) -> tuple[str, ...]:
        return self._try(self.inner.tasks)

    def _is_there(self, info: CheckpointInfo, blob: Blob) -> bool:
        return bytes(self.inner.get(info.task, info.id)) == bytes(blob)

    def _try(self, call: Callable[[], T]) -> T:
        for attempt in range(self._patience.attempts - 1):
            try:
                return call()
            except CheckpointError as error:
                if not error.retryable:
                    raise
                self._patience.wait(attempt)
        try:
            return call()
        except CheckpointError as error:
            error.recovery = f"tried {self._patience.attempts} times"
            raise

    def _try_once_effective(self, call: Callable[[], None]) -> None:
        """For what takes something away: not found on a repeat means that the first attempt worked."""
        repeated = False

        def attempt() -> None:
            nonlocal repeated
            try:
                call()
            except CheckpointNotFoundError:
                if not repeated:
                    raise
            finally:
                repeated = True

        self._try(attempt)
