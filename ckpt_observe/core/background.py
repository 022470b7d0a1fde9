"""Saves off the caller's thread: the state is frozen at once, the rest (compression, encryption, writing) happens behind.

A future says when a checkpoint is durable, and carries its error if it does not become so. At most `depth` saves wait; the
next one then waits for room, so that memory stays bounded and a slow store is felt instead of hidden.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.errors import ConfigError, StorageError
from ckpt_observe.support import forks

T = TypeVar("T")


class BackgroundCheckpointer:
    """A Checkpointer whose saves return before they are durable. In order, one at a time."""

    def __init__(self, checkpointer: Checkpointer, *, depth: int = 2) -> None:
        if depth < 1:
            raise ConfigError(f"at least one save must be able to wait, not {depth}: with less, none could begin")
        self.checkpointer = checkpointer
        self._depth = depth
        self._worker = Workers(1, "ckpt-save")
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """In a child nobody makes the room that saves of the parent have taken."""
        self._room = threading.BoundedSemaphore(self._depth)

    def save(self, task: str, state: Any, **label: Any) -> Future[CheckpointInfo]:
        """Freeze the state and save it behind; takes what `Checkpointer.save` takes."""
        staged = self.checkpointer.stage(state)
        room = self._room
        room.acquire()
        try:
            future = self._worker.submit(lambda: self.checkpointer.save(task, staged, **label))
        except BaseException:
            room.release()
            raise
        future.add_done_callback(lambda future: _done(task, room, future))
        return future

    def close(self) -> None:
        """Wait until everything given is durable or has failed."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _done(task: str, room: threading.BoundedSemaphore, future: Future[CheckpointInfo]) -> None:
    """Whoever does not look at the future shall find the failure in the log."""
    room.release()
    if not future.cancelled() and (error := future.exception()) is not None:
        logging.getLogger(__name__).warning("a checkpoint of %r was not saved: %s", task, error)


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
