"""What is needed of an operation, and the guard that keeps our failures away from the host.

The recording side is known here only by these protocols; it need not import them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, TypeAlias


class Operation(Protocol):
    """Something that takes time. Entered once and left once."""

    def __enter__(self) -> object:
        """Starts the clock and becomes current in the calling context."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /) -> object:
        """Ends it. While suspended this may come from another thread or context, which is then left as it is."""

    def suspend(self) -> object:
        """Stops being current and goes on being timed."""

    def resume(self) -> object:
        """Becomes current again, in the context of the caller."""


Begin: TypeAlias = Callable[[Any, tuple[Any, ...], dict[str, Any]], Operation | None]
"""From `(instance, args, kwargs)` of the host's call: an operation not yet entered, or None if this call is not observed."""
Note: TypeAlias = Callable[[Any, Any], object]
"""`(operation, result)` after success: reads facts from what the call gave, or what its coroutine, generator or future gave."""
Fault: TypeAlias = Callable[[Exception], object]
"""Is told of our own failures. Must not raise."""


@dataclass(frozen=True, slots=True)
class Guard:
    """The steps of an operation's life. None of them raises: what fails goes to `fault`. Of None, the unobserved, they do nothing."""

    begin: Begin
    fault: Fault
    note: Note | None = None

    def start(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
        try:
            operation = self.begin(instance, args, kwargs)
            if operation is not None:
                operation.__enter__()
        except Exception as error:
            self.fault(error)
            return None
        return operation

    def suspend(self, operation: Operation | None) -> None:
        try:
            if operation is not None:
                operation.suspend()
        except Exception as error:
            self.fault(error)

    def resume(self, operation: Operation | None) -> None:
        try:
            if operation is not None:
                operation.resume()
        except Exception as error:
            self.fault(error)

    def succeed(self, operation: Operation | None, result: Any) -> None:
        try:
            if self.note is not None and operation is not None:
                self.note(operation, result)
        except Exception as error:
            self.fault(error)
        self.end(operation)

    def end(self, operation: Operation | None, error: BaseException | None = None) -> None:
        if operation is None:
            return
        try:
            if error is None:
                operation.__exit__(None, None, None)
            else:
                operation.__exit__(type(error), error, error.__traceback__)
        except Exception as own:
            self.fault(own)
