"""Operations that may outlive the call that began them: async saves, which return before the checkpoint is durable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from ckpt_observe.record.operation import Operation
from ckpt_observe.semconv import attributes as names


class Completion:
    """The call of an async save returns, and its work is complete, in two threads and in any order. The second one ends the operation."""

    __slots__ = ("_first", "error")

    def __init__(self) -> None:
        self._first = [True]
        self.error: BaseException | None = None
        """The exception of work that was complete before the call returned."""

    def is_second(self) -> bool:
        """Return False for the first call of this method, and True for the second one, whichever threads they come from."""
        try:
            return not self._first.pop()
        except IndexError:
            return True


class AsyncOperation(Operation):
    """An operation that ends with its call, unless `outlive_call` is called. Then it ends when it is complete, too."""

    __slots__ = ("completion",)

    def __init__(self, name: str, attributes: Mapping[str, Any] | None = None, encoded_attributes: Raw | None = None) -> None:
        super().__init__(name, attributes, encoded_attributes)
        self.completion: Completion | None = None

    def outlive_call(self) -> None:
        """Do not end when the call returns, because a thread of the library goes on with the work. It calls `complete`."""
        if self.completion is None:
            self.completion = Completion()
            if self._attributes is None:
                self._attributes = {}  # from now on, two threads set attributes

    def end_with_call(self) -> None:
        """Undo `outlive_call`, because the work is done within the call."""
        self.completion = None

    def complete(self, error: BaseException | None = None) -> None:
        """End an operation that outlives its call, with the exception that ended its work. Before the call returns, it only takes note."""
        completion = self.completion
        if completion is not None and self.open_page:
            completion.error = error
            if error is None:
                self.set_trusted({names.ASYNC_DURABLE: self.elapsed()})
            if not completion.is_second():
                return
        self.completion = None
        self._end(error)

    def release(self) -> None:
        """Let the caller go on. Ends the operation if it is complete."""
        self.suspend()
        if self.completion is None:
            self.set_released()
        else:
            self.finish()

    def finish(self, error: BaseException | None = None) -> None:
        """End the operation. If it outlives its call, a return without an exception does not end it."""
        completion = self.completion
        if completion is not None:
            if error is None:
                self.set_released()
                if not completion.is_second():
                    return
                error = completion.error
            self.completion = None
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        super().finish(error)
