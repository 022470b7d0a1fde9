"""Phases of a library's operations: serializers, database calls and context managers that run within an operation.

Each row sums up its calls (see `record.phase_sum`). Outside an operation of its library it does nothing, so rows may patch code that other
libraries use too, such as a database driver.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

from ckpt_observe.instrument.library_call import LibraryCall, LibraryOperation, current_library_operation
from ckpt_observe.instrument.wrappers import Args, Kwargs, Wrapper
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.phase import Sizes

ReadSizes: TypeAlias = Callable[[Args, Kwargs, Any], Sizes]
"""Takes the arguments and the result of a call. Returns the bytes that went in and came out; None for a number that is not known."""
ChoosePhase: TypeAlias = Callable[[LibraryOperation, Args], str | None]
"""Returns the phase that a call belongs to; None: to none."""


@dataclass(frozen=True, slots=True, eq=False)
class SummedPhase:
    """A function, method or coroutine function whose calls are a phase of the running operation of a library."""

    system: str
    """The library; empty for code that several libraries use, such as a database driver."""
    phase: str | ChoosePhase
    read_sizes: ReadSizes | None = None
    record: Callable[[LibraryOperation, Args, Kwargs, Any], object] | None = None
    """Called with the result of each call, also of a call within another one."""
    record_error: Callable[[LibraryOperation, Args, Kwargs, Exception], object] | None = None
    """Called with the exception of a call. Libraries catch some of them, for example to skip what cannot be decoded."""

    def wrapper_for(self, original: Any, declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        function = getattr(original, "__func__", original)
        is_coroutine = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(declared)
        return self._call_coroutine if is_coroutine else self._call_function

    def _call_function(self, wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
        operation = current_library_operation(self.system)
        if operation is None:
            return wrapped(*args, **kwargs)
        call = self._begin(operation, args)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            self._fail(operation, call, args, kwargs, error)
            raise
        self._end(operation, call, args, kwargs, result)
        return result

    def _call_coroutine(self, wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
        inner = wrapped(*args, **kwargs)
        operation = current_library_operation(self.system)
        return inner if operation is None else self._wait(operation, inner, args, kwargs)

    async def _wait(self, operation: LibraryOperation, inner: Awaitable[Any], args: Args, kwargs: Kwargs) -> Any:
        call = self._begin(operation, args)
        try:
            result = await inner
        except BaseException as error:
            self._fail(operation, call, args, kwargs, error)
            raise
        self._end(operation, call, args, kwargs, result)
        return result

    def _begin(self, operation: LibraryOperation, args: Args) -> Any:
        try:
            phase = self.phase if isinstance(self.phase, str) else self.phase(operation, args)
            return None if phase is None else operation.begin_call(phase)
        except Exception as error:
            record_fault(error)
            return None

    def _fail(self, operation: LibraryOperation, call: Any, args: Args, kwargs: Kwargs, error: BaseException) -> None:
        try:
            if self.record_error is not None and isinstance(error, Exception):
                self.record_error(operation, args, kwargs, error)
        except Exception as fault:
            record_fault(fault)
        if call is not None:
            call.end(error)

    def _end(self, operation: LibraryOperation, call: Any, args: Args, kwargs: Kwargs, result: Any) -> None:
        size_in: int | None = 0
        size_out: int | None = 0
        try:
            if self.read_sizes is not None:
                size_in, size_out = self.read_sizes(args, kwargs, result)
            if self.record is not None:
                self.record(operation, args, kwargs, result)
        except Exception as error:
            record_fault(error)
        if call is not None:
            call.end(None, size_in or 0, size_out or 0)


@dataclass(frozen=True, slots=True, eq=False)
class OperationOrPhase:
    """A call that is an operation of its own, but a phase inside the same kind of operation: a store that others use directly, too."""

    operation: LibraryCall
    phase: SummedPhase

    def wrapper_for(self, original: Any, declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        call_operation = self.operation.wrapper_for(original, declared)
        call_phase = self.phase.wrapper_for(original, declared)

        def wrapper(wrapped: Callable[..., Any], instance: Any, args: Args, kwargs: Kwargs) -> Any:
            enclosing = current_library_operation(self.operation.system)
            is_part = enclosing is not None and enclosing.name == self.operation.operation
            return (call_phase if is_part else call_operation)(wrapped, instance, args, kwargs)

        return wrapper


@dataclass(frozen=True, slots=True, eq=False)
class ManagedPhases:
    """A method that returns a context manager: waiting for it, its body and leaving it are phases of the running operation.

    A cursor that waits for a lock and commits on exit is `wait`, `write` and `commit`.
    """

    system: str
    phases: Mapping[str, tuple[str, str, str]]
    """By operation: the phases of entering, of the body and of leaving. Leaving belongs to the body if it has the same phase."""

    def wrapper_for(self, _original: Any, _declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        return self._call

    def _call(self, wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
        manager = wrapped(*args, **kwargs)
        operation = current_library_operation(self.system)
        phases = self.phases.get(operation.name) if operation is not None else None
        return manager if operation is None or phases is None else _ObservedManager(manager, operation, phases)


class _ObservedManager:
    """Stands in for a context manager of the library, synchronous or asynchronous."""

    def __init__(self, manager: Any, operation: LibraryOperation, phases: tuple[str, str, str]) -> None:
        self._manager, self._operation = manager, operation
        self._enter_phase, self._body_phase, self._exit_phase = phases
        self._call: Any = None
        """The running call of a phase."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def _switch(self, phase: str | None, error: BaseException | None = None) -> None:
        """End the running phase, with the exception that ended it, and start the next one."""
        try:
            call, self._call = self._call, None
            if call is not None:
                call.end(error)
            if phase is not None:
                self._call = self._operation.begin_call(phase)
        except Exception as fault:
            record_fault(fault)

    def __enter__(self) -> Any:
        self._switch(self._enter_phase)
        try:
            value = self._manager.__enter__()
        except BaseException as error:
            self._switch(None, error)
            raise
        self._switch(self._body_phase)
        return value

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        self._leave_body(error)
        try:
            result = self._manager.__exit__(kind, error, trace)
        except BaseException as raised:
            self._switch(None, raised)
            raise
        self._switch(None)
        return result

    async def __aenter__(self) -> Any:
        self._switch(self._enter_phase)
        try:
            value = await self._manager.__aenter__()
        except BaseException as error:
            self._switch(None, error)
            raise
        self._switch(self._body_phase)
        return value

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        self._leave_body(error)
        try:
            result = await self._manager.__aexit__(kind, error, trace)
        except BaseException as raised:
            self._switch(None, raised)
            raise
        self._switch(None)
        return result

    def _leave_body(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, GeneratorExit):  # the consumer of a generator stopped early, which is no failure
            self._switch(None, error)
        elif self._exit_phase != self._body_phase:
            self._switch(self._exit_phase)
