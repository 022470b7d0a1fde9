"""Threads that work for a caller: in its surroundings, and in a forked child anew."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ckpt_observe.errors import ConfigError, StorageError
from ckpt_observe.support import forks

T = TypeVar("T")


class Workers:
    """At most `count` threads."""

    def __init__(self, count: int, name: str) -> None:
        if count < 1:
            raise ConfigError(f"at least one thread must do the work, not {count}")
        self._count = count
        self._name = name
        self._closed = False
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """A child has none of its parent's threads, and a pool that counts on them would wait for ever."""
        if not self._closed:
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix=self._name)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        try:
            return self._pool.submit(contextvars.copy_context().run, call)
        except RuntimeError as error:  # what a closed pool says
            raise StorageError(f"nothing more is saved or loaded: {error}", code="storage.closed", retryable=False) from error

    def close(self) -> None:
        """Wait until everything given is done."""
        self._closed = True
        self._pool.shutdown()
