"""A store that retries failed calls if a retry can help. No other store retries by itself."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.query import Query
from ckpt_observe.core.stores.store import Store, StoreWrapper
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, ConflictError

T = TypeVar("T")

_random = random.SystemRandom()  # not the global generator, whose sequence a training run may depend on


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """Number of attempts, and seconds between them. Delays double, and are randomly shortened so that clients do not retry in step."""

    attempts: int = 5
    first_delay: float = 0.1
    max_delay: float = 10.0
    sleep: Callable[[float], object] = time.sleep

    def wait(self, attempt: int) -> None:
        """Sleep after a failed attempt. `attempt` is its number, starting at 0."""
        self.sleep(min(self.max_delay, self.first_delay * 2**attempt) * _random.uniform(0.5, 1))


class RetryingStore(StoreWrapper):
    """Retries calls that fail with an error whose `retryable` is true, and no others."""

    def __init__(self, inner: Store, policy: RetryPolicy | None = None) -> None:
        super().__init__(inner)
        self._policy = policy or RetryPolicy()

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        """Store a checkpoint, with retries. If a retry finds the same bytes under this id, an earlier attempt has stored them."""
        is_retry = False

        def attempt() -> None:
            nonlocal is_retry
            try:
                self.inner.put(info, blob)
            except ConflictError as error:
                if error.code != "conflict.exists" or not is_retry or not self._is_stored(info, blob):
                    raise
            finally:
                is_retry = True

        self._retry(attempt)

    def put_many(self, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        for info, blob in batch:
            self.put(info, blob)

    def get(self, task: str, id: str) -> Buffer:
        return self._retry(lambda: self.inner.get(task, id))

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        return self._retry(lambda: self.inner.get_range(task, id, start, size))

    def info(self, task: str, id: str) -> CheckpointInfo:
        return self._retry(lambda: self.inner.info(task, id))

    def size(self, task: str, id: str) -> int:
        return self._retry(lambda: self.inner.size(task, id))

    def delete(self, task: str, id: str) -> None:
        self._retry_removal(lambda: self.inner.delete(task, id))

    def discard(self, task: str, id: str) -> None:
        self._retry_removal(lambda: self.inner.discard(task, id))

    def quarantine(self, task: str, id: str) -> None:
        self._retry_removal(lambda: self.inner.quarantine(task, id))

    def list(self, task: str) -> CheckpointInfos:
        return self._retry(lambda: self.inner.list(task))

    def find(self, query: Query) -> CheckpointInfos:
        return self._retry(lambda: self.inner.find(query))

    def ids(self, task: str) -> tuple[str, ...]:
        return self._retry(lambda: self.inner.ids(task))

    def newest(self, task: str) -> str | None:
        return self._retry(lambda: self.inner.newest(task))

    def tasks(self) -> tuple[str, ...]:
        return self._retry(self.inner.tasks)

    def _is_stored(self, info: CheckpointInfo, blob: Blob) -> bool:
        try:
            return bytes(self.inner.get(info.task, info.id)) == bytes(blob)
        except CheckpointNotFoundError:  # stored by another program, and removed since
            return False

    def _retry(self, call: Callable[[], T]) -> T:
        for attempt in range(self._policy.attempts - 1):
            try:
                return call()
            except CheckpointError as error:
                if not error.retryable:
                    raise
                self._policy.wait(attempt)
        try:
            return call()
        except CheckpointError as error:
            error.recovery = f"tried {self._policy.attempts} times"
            raise

    def _retry_removal(self, call: Callable[[], None]) -> None:
        """Retry a call that removes a checkpoint. If a retry does not find it, an earlier attempt has removed it."""
        is_retry = False

        def attempt() -> None:
            nonlocal is_retry
            try:
                call()
            except CheckpointNotFoundError:
                if not is_retry:
                    raise
            finally:
                is_retry = True

        self._retry(attempt)
