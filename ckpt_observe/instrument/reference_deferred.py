"""Saves of the reference core that are serialized now and written later: in another thread, by a batch, or after `stage`.

Such a save is an operation from its first line, so one that fails or dies before the write leaves a span too.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from opentelemetry.context import Context, attach

from ckpt_observe.instrument.reference_operation import CoreOperation
from ckpt_observe.record.async_operation import AsyncOperation
from ckpt_observe.record.operation import Operation, current_operation, current_position


class DeferredSave(CoreOperation, AsyncOperation):
    """A save by `BackgroundCheckpointer` or `AsyncCheckpointer`. The `stage` and the `save` of their Checkpointer are parts of it."""

    __slots__ = ("is_continued",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.outlive_call()
        self.is_continued = False
        """Whether the save of the Checkpointer has begun. Saves after it are others, such as those of a hook."""


class Continuation:
    """The rest of a `DeferredSave`, in the thread that writes. Ends its operation before the future is done and the program sees it."""

    def __init__(self, operation: DeferredSave) -> None:
        self._operation = operation
        self.open_page = operation.open_page
        self.set_trusted = operation.set_trusted

    def __enter__(self) -> None:
        self._operation.is_continued = True
        self._operation.move_to_this_thread()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._operation.complete(error)

    def suspend(self) -> None:
        """Do nothing: the thread runs in a copy of the context in which the operation is current."""

    def resume(self) -> None:
        """Do nothing, as in `suspend`."""

    def release(self) -> None:
        """Do nothing, as in `suspend`."""


class ProvisionalSave(CoreOperation):
    """Serializes a state that another operation will write. Only a failure is recorded, because a success saves nothing yet.

    It is not the current span of OpenTelemetry: a span that is not recorded must have no children.
    """

    __slots__ = ()

    def _make_current(self, context: Context) -> None:
        self._position_token = current_position.set((self, 0, None))
        self._context_token = attach(context)


def drop(operation: Operation, _result: Any) -> None:
    """End a `ProvisionalSave` that succeeded."""
    operation.drop()


def unwritten_save() -> DeferredSave | None:
    """Return the deferred save that runs in this context and has not been continued."""
    operation = current_operation()
    return operation if isinstance(operation, DeferredSave) and operation.open_page and not operation.is_continued else None
