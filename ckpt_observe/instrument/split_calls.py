"""Operations that a library performs in several calls.

A Trainer restores the model, its own state, the optimizer and the random generators one after another, with other work in between. These
calls are phases of one operation. Between them it is not current, so what happens there does not belong to it. It ends with the last call,
with a call that fails, or at the latest with the enclosing call, such as `train()`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from ckpt_observe.instrument.library_call import LibraryCall, LibraryOperation, current_library_operation, parameter_names
from ckpt_observe.instrument.phase_calls import SummedPhase
from ckpt_observe.instrument.runs import RunCall
from ckpt_observe.instrument.wrappers import Args, BeginOperation, Kwargs, Wrapper
from ckpt_observe.record.guard import record_fault

_operations: Final[ContextVar[list[LibraryOperation] | None]] = ContextVar("ckpt_observe-split-operations", default=None)
"""The operations that began in the enclosing call, if there is one. Only the last one may be unfinished."""


@dataclass(frozen=True, slots=True, eq=False)
class EnclosingCall:
    """A run in which an operation consists of several calls."""

    run: RunCall

    def wrapper_for(self, original: Any, declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        observe = self.run.wrapper_for(original, declared)

        def call(wrapped: Callable[..., Any], instance: Any, args: Args, kwargs: Kwargs) -> Any:
            operations: list[LibraryOperation] = []
            token = _operations.set(operations)
            try:
                return observe(wrapped, instance, args, kwargs)
            finally:
                _operations.reset(token)
                for operation in operations:
                    operation.finish()

        return call


@dataclass(frozen=True, slots=True, eq=False)
class PartCall:
    """One of the calls that make up an operation. Outside the enclosing call, it is an operation of its own."""

    operation: LibraryCall
    phase: SummedPhase
    is_first: bool = False
    """Whether the operation begins here, if it has not begun."""
    is_last: bool = False
    """Whether the operation ends here."""

    def wrapper_for(self, original: Any, declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        begin = self.operation.begin_function(parameter_names(original if declared is None else declared))
        call_phase = self.phase.wrapper_for(original, declared)

        def call(wrapped: Callable[..., Any], instance: Any, args: Args, kwargs: Kwargs) -> Any:
            if current_library_operation(self.operation.system) is not None:  # an override that calls the method of its base class
                return call_phase(wrapped, instance, args, kwargs)
            operation: LibraryOperation | None = None
            try:
                operation = self._enter(begin, instance, args, kwargs)
            except Exception as error:
                record_fault(error)
            if operation is None:
                return wrapped(*args, **kwargs)
            try:
                result = call_phase(wrapped, instance, args, kwargs)
            except BaseException as error:
                self._leave(operation, error)
                raise
            self._leave(operation)
            return result

        return call

    def _enter(self, begin: BeginOperation, instance: Any, args: Args, kwargs: Kwargs) -> LibraryOperation | None:
        """Continue or begin the operation. Return None if there is none, or if it is not recorded."""
        operations = _operations.get()
        if operations and operations[-1].open_page and operations[-1].call.system == self.operation.system:
            operations[-1].resume()
            return operations[-1]
        scope = begin(instance, args, kwargs) if self.is_first else None
        if not isinstance(scope, LibraryOperation):
            return None
        scope.__enter__()
        if operations is not None:
            operations.append(scope)
        return scope

    def _leave(self, operation: LibraryOperation, error: BaseException | None = None) -> None:
        operation.suspend()
        if error is not None or self.is_last or _operations.get() is None:
            operation.finish(error)
