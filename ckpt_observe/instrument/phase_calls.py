"""Phases of a library's operations: serializers and database calls that run within an operation.

Each row sums up its calls (see `record.phase_sum`). Outside an operation of its library it does nothing, so rows may patch code that other
libraries use too, such as a database driver.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ckpt_observe.instrument.library_call import LibraryCall, LibraryOperation, current_library_operation
from ckpt_observe.instrument.wrappers import Args, Kwargs, Wrapper
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import current_position
from ckpt_observe.record.phase import Sizes
from ckpt_observe.record.phase_sum import PhaseSum, start_phase

Measure: TypeAlias = Callable[[LibraryOperation, Args, Kwargs, Any], Sizes]
"""Takes the operation, and the arguments and the result of a call. Returns the bytes that went in and came out; None: not known."""
ChoosePhase: TypeAlias = Callable[[LibraryOperation, Args], str | None]
"""Returns the phase that a call belongs to; None: to none."""
_monotonic, _thread = time.perf_counter_ns, threading.get_ident
_get_position, _set_position, _reset_position = current_position.get, current_position.set, current_position.reset


@dataclass(frozen=True, slots=True, eq=False)
class SummedPhase:
    """A function, method or coroutine function whose calls are a phase of the running operation of a library."""

    system: str
    """The library; empty for code that several libraries use, such as a database driver."""
    phase: str | ChoosePhase
    measure: Measure | None = None
    """Called with the result of each call, also of a call within another one, whose sizes do not count."""
    record_error: Callable[[LibraryOperation, Args, Kwargs, Exception], object] | None = None
    """Called with the exception of a call. Libraries catch some of them, for example to skip what cannot be decoded."""
    is_expected: Callable[[BaseException], bool] | None = None
    """Returns whether the library asks a question by this exception, such as whether a column exists. It is not a failure of the phase."""

    def wrapper_for(self, original: Any, declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        function = getattr(original, "__func__", original)
        is_coroutine = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(declared)
        return self._call_coroutine if is_coroutine else self._function_wrapper()

    def _function_wrapper(self) -> Wrapper:
        """Return the wrapper for a plain function. All steps are in one frame: serializers are called once per key.

        In the thread of the operation, `running_phase` says which call runs. Setting it takes a tenth of the time of a context variable.
        """
        system, measure = self.system, self.measure
        constant_phase = self.phase if isinstance(self.phase, str) else ""

        def call(wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
            position = _get_position()
            if position is None:
                return wrapped(*args, **kwargs)
            operation: Any = position[0]
            if type(operation) is not LibraryOperation or not operation.open_page or (system and operation.call.system != system):
                return wrapped(*args, **kwargs)
            if position[1] or operation.thread != _thread():
                return self._call_in_context(operation, wrapped, args, kwargs)
            outer, start = operation.running_phase, _monotonic() - operation.start
            total: Any = None
            try:
                total = operation.sums.get(constant_phase)
                if total is not None:
                    if outer == total.number:  # a call within a call
                        total = None
                    elif total.end_mark:
                        operation.page.marks[total.end_mark] = 0
                elif constant_phase:
                    total = operation.sums.setdefault(constant_phase, start_phase(operation, constant_phase, outer, start))
                else:
                    total = self._begin_chosen_phase(operation, args, outer)
                if total is not None:
                    operation.running_phase = total.number
            except BaseException as error:
                operation.running_phase = outer
                record_fault(error)
            try:
                result = wrapped(*args, **kwargs) if kwargs else wrapped(*args)
            except BaseException as error:
                operation.running_phase = outer
                self._fail(operation, (total, None, start), args, kwargs, error)
                raise
            operation.running_phase = outer
            try:
                if total is not None:
                    total.stop = stop = total.stop + _monotonic() - operation.start - start
                    total.calls += 1
                    if total.end_mark and operation.open_page:
                        operation.page.marks[total.end_mark] = stop << 12 | 1
                if measure is not None and operation.open_page:
                    bytes_in, bytes_out = measure(operation, args, kwargs, result)
                    if total is not None:
                        if bytes_in:
                            total.bytes_in += bytes_in
                        if bytes_out:
                            total.bytes_out += bytes_out
            except Exception as error:
                record_fault(error)
            return result

        return call

    def _call_in_context(self, operation: LibraryOperation, wrapped: Callable[..., Any], args: Args, kwargs: Kwargs) -> Any:
        """Call a plain function in another thread than the operation's, or within a phase that a context variable says is running."""
        call = self._begin(operation, args)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException as error:
            self._fail(operation, call, args, kwargs, error)
            raise
        self._succeed(operation, call, args, kwargs, result)
        return result

    def _begin_chosen_phase(self, operation: LibraryOperation, args: Args, outer: int) -> PhaseSum | None:
        """Return the phase that `phase` chooses, after its end mark is cleared; None if it chooses none, or for a call within a call."""
        total = self._find_total(operation, args)
        if total is None or outer == total.number:
            return None
        total.begin(operation)
        return total

    def _find_total(self, operation: LibraryOperation, args: Args) -> PhaseSum | None:
        phase = self.phase if isinstance(self.phase, str) else self.phase(operation, args)
        return None if phase is None else operation.total(phase)

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
        self._succeed(operation, call, args, kwargs, result)
        return result

    def _begin(self, operation: LibraryOperation, args: Args) -> tuple[PhaseSum | None, Any, int]:
        """Start a call. Return its phase, the token of its position and its start; no phase for a call within a call."""
        try:
            total, position = self._find_total(operation, args), _get_position()
            if total is not None and (position is None or position[0] is not operation or position[1] != total.number):
                return total, _set_position((operation, total.number, None)), total.begin(operation)
        except Exception as error:
            record_fault(error)
        return None, None, 0

    def _succeed(self, operation: LibraryOperation, call: tuple[Any, Any, int], args: Args, kwargs: Kwargs, result: Any) -> None:
        total = call[0]
        try:
            if self.measure is not None and operation.open_page:
                bytes_in, bytes_out = self.measure(operation, args, kwargs, result)
                if total is not None:
                    total.bytes_in += bytes_in or 0
                    total.bytes_out += bytes_out or 0
        except Exception as error:
            record_fault(error)
        _end_call(operation, *call)

    def _fail(self, operation: LibraryOperation, call: tuple[Any, Any, int], args: Args, kwargs: Kwargs, error: BaseException) -> None:
        try:
            if self.record_error is not None and isinstance(error, Exception) and operation.open_page:
                self.record_error(operation, args, kwargs, error)
            failure = None if self.is_expected is not None and self.is_expected(error) else error
        except Exception as fault:
            record_fault(fault)
            failure = error
        _end_call(operation, *call, failure)


def _end_call(operation: LibraryOperation, total: PhaseSum | None, token: Any, start: int, error: BaseException | None = None) -> None:
    """End a call of a phase, if there is one. Never raises."""
    if total is None:
        return
    try:
        total.end(operation, start, error)
        if token is not None:
            _reset_position(token)
    except ValueError:  # left in another context than it was entered in, such as a generator's
        _set_position(None)
    except Exception as fault:
        record_fault(fault)


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


def text_size(text: Any) -> int | None:
    """Return the number of bytes of a text in UTF-8, or of bytes; None for anything else."""
    if isinstance(text, str):
        return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return len(text) if isinstance(text, bytes) else None
