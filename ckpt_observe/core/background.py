"""Saves off the caller's thread: the state is frozen at once, the rest (compression, encryption, writing) happens behind.

A future says when a checkpoint is durable, and carries its error if it does not become so. At most `depth` saves wait; the
next one then waits for room, so that memory stays bounded and a slow store is felt instead of hidden.
"""

from __future__ import annotations

import contextvars
import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.errors import ConfigError, StorageError


class BackgroundCheckpointer:
    """A Checkpointer whose saves return before they are durable. In order, one at a time."""

    def __init__(self, checkpointer: Checkpointer, *, depth: int = 2) -> None:
        if depth < 1:
            raise ConfigError(f"at least one save must be able to wait, not {depth}: with less, none could begin")
        self.checkpointer = checkpointer
        self._room = threading.BoundedSemaphore(depth)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="ckpt-save")

    def save(self, task: str, state: Any, **label: Any) -> Future[CheckpointInfo]:
        """Freeze the state and save it behind; takes what `Checkpointer.save` takes."""
        staged = self.checkpointer.stage(state)
        self._room.acquire()
        try:
            surroundings = contextvars.copy_context()
            future = self._worker.submit(lambda: surroundings.run(self.checkpointer.save, task, staged, **label))
        except BaseException as error:
            self._room.release()
            if isinstance(error, RuntimeError):  # what a closed executor says
                raise StorageError(f"nothing more is saved behind: {error}", code="storage.closed", retryable=False) from error
            raise
        future.add_done_callback(lambda future: self._done(task, future))
        return future

    def _done(self, task: str, future: Future[CheckpointInfo]) -> None:
        """Whoever does not look at the future shall find the failure in the log."""
        self._room.release()
        if not future.cancelled() and (error := future.exception()) is not None:
            logging.getLogger(__name__).warning("a checkpoint of %r was not saved: %s", task, error)

    def close(self) -> None:
        """Wait until everything given is durable or has failed."""
        self._worker.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
