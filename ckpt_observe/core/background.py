"""Saves off the caller's thread: the state is frozen at once, the rest (compression, encryption, writing) happens behind.

A future says when a checkpoint is durable, and carries its error if it does not become so. At most `depth` saves wait; the
next one then waits for room, so that memory stays bounded and a slow store is felt instead of hidden.
"""

from __future__ import annotations

import contextvars
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.model import CheckpointInfo


class BackgroundCheckpointer:
    """A Checkpointer whose saves return before they are durable. In order, one at a time."""

    def __init__(self, checkpointer: Checkpointer, *, depth: int = 2) -> None:
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
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        return future

    def close(self) -> None:
        """Wait until everything given is durable or has failed."""
        self._worker.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
