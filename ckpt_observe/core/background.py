"""Saves in a background thread: the caller serializes the state; compression, encryption and writing happen in the thread.

The returned future completes when the checkpoint is durable, or with its error. At most `depth` saves are unfinished; the next one blocks
the caller, so that memory stays bounded and a slow store is noticed.
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
from ckpt_observe.support.host_exceptions import raise_host_exception

T = TypeVar("T")


class BackgroundCheckpointer:
    """A Checkpointer whose saves return before they are durable. They are written in order, one at a time."""

    def __init__(self, checkpointer: Checkpointer, *, depth: int = 2) -> None:
        if depth < 1:
            raise ConfigError(f"`depth` must be at least 1, not {depth}")
        self.checkpointer = checkpointer
        self._depth = depth
        self._worker = Workers(1, "ckpt-save")
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """Start with an empty queue: saves queued in the parent never finish in a child."""
        self._slots = threading.BoundedSemaphore(self._depth)

    def save(self, task: str, state: Any, **label: Any) -> Future[CheckpointInfo]:
        """Serialize the state and save it in the background. Takes the arguments of `Checkpointer.save`. Blocks while the queue is full."""
        staged = self.checkpointer.stage(state)
        slots = self._wait_for_slot()
        try:
            future = self._worker.submit(lambda: self.checkpointer.save(task, staged, **label))
        except BaseException:
            slots.release()
            raise
        future.add_done_callback(lambda future: _finish(task, slots, future))
        return future

    def _wait_for_slot(self) -> threading.BoundedSemaphore:
        """Wait until fewer than `depth` saves are unfinished. Return the semaphore to release when this one is finished."""
        slots = self._slots
        slots.acquire()
        return slots

    def close(self) -> None:
        """Wait until every save is durable or has failed. The Checkpointer itself stays open."""
        self._worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _finish(task: str, slots: threading.BoundedSemaphore, future: Future[CheckpointInfo]) -> None:
    """Free the queue slot of a finished save. Log a failure, because the caller may ignore the future."""
    slots.release()
    if not future.cancelled() and (error := future.exception()) is not None:
        logging.getLogger(__name__).warning("Cannot save a checkpoint of %r: %s", task, error)


class Workers:
    """A pool of at most `count` threads that run calls in the caller's `contextvars` context. A forked child gets a new pool."""

    def __init__(self, count: int, name: str) -> None:
        if count < 1:
            raise ConfigError(f"the number of threads must be at least 1, not {count}")
        self._count = count
        self._name = name
        self._closed = False
        self.reset_after_fork()
        forks.register(self)

    def reset_after_fork(self) -> None:
        """Create a new pool: the parent's threads do not exist in a child, and the inherited pool would wait for them forever."""
        if not self._closed:
            self._pool = ThreadPoolExecutor(self._count, thread_name_prefix=self._name)

    def submit(self, call: Callable[[], T]) -> Future[T]:
        try:
            return self._pool.submit(contextvars.copy_context().run, call)
        except RuntimeError as error:  # the pool is closed
            raise_host_exception(error)
            raise StorageError(f"this Checkpointer is closed: {error}", code="storage.closed", retryable=False) from error

    def close(self) -> None:
        """Wait until all calls are done."""
        self._closed = True
        self._pool.shutdown()
