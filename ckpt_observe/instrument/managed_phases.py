"""Phases of a library's operations that are context managers: waiting for a connection, using it, and leaving it, which commits.

Outside an operation of its library, such a row does nothing. The phases of several uses within one operation are summed up (see
`record.phase_sum`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import _AsyncGeneratorContextManager, _GeneratorContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final

from ckpt_observe.instrument.library_call import LibraryOperation
from ckpt_observe.instrument.wrappers import Args, Kwargs, Wrapper
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import current_position
from ckpt_observe.record.phase_sum import PhaseRow, PhaseSum
from ckpt_observe.semconv.events import MARKED_PHASES, PHASE_CODES

_monotonic, _thread = time.perf_counter_ns, threading.get_ident
_get_position, _set_position, _reset_position = current_position.get, current_position.set, current_position.reset


@dataclass(frozen=True, slots=True, eq=False)
class ManagedPhases:
    """A method that returns a context manager: waiting for it, its body and leaving it are phases of the running operation.

    A cursor that waits for a lock and commits on exit is `wait`, `write` and `commit`. Only what `contextlib.contextmanager` and its
    asynchronous twin make is observed. A program's own `cursor` may return anything, such as the cursor itself, to be used without `with`.
    """

    system: str
    phases: Mapping[str, tuple[str, str, str]]
    """By operation: the phases of entering, of the body and of leaving. Leaving belongs to the body if it has the same phase."""
    first_phases: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    """The same for the first call of an object, if it has other phases than the following ones."""
    is_first: Callable[[Any], bool] = lambda _: False
    """Takes the object. Returns whether this is its first call. Asked only for the operations in `first_phases`."""

    def wrapper_for(self, _original: Any, _declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        system, phases_of, first_phases = self.system, self.phases.get, self.first_phases

        def call(wrapped: Callable[..., Any], instance: Any, args: Args, kwargs: Kwargs) -> Any:
            manager = wrapped(*args, **kwargs)
            position = _get_position()
            if position is None:
                return manager
            operation: Any = position[0]
            if type(operation) is not LibraryOperation or not operation.open_page or (system and operation.call.system != system):
                return manager
            phases = phases_of(operation.name)
            if operation.name in first_phases and self._is_first(instance):
                phases = first_phases[operation.name]
            kind = type(manager)
            if phases is None or kind not in _MANAGERS:
                return manager
            if kind is _GeneratorContextManager and getattr(manager.gen, "gi_code", None) is _OBSERVED_STEPS:
                return manager  # a method handed on what another observed one returned
            is_here = kind is _GeneratorContextManager and not position[1] and operation.thread == _thread()
            if is_here and not operation.first_use and not operation.running_phase:
                manager.gen = _observe_first_use(manager.gen, operation, phases)
                return manager
            return _ObservedManager(manager, operation, phases)

        return call

    def _is_first(self, instance: Any) -> bool:
        try:
            return self.is_first(instance)
        except Exception as error:
            record_fault(error)
            return False


_MANAGERS: Final = (_GeneratorContextManager, _AsyncGeneratorContextManager)


def _observe_first_use(
    inner: Generator[Any, Any, Any], operation: LibraryOperation, phases: tuple[str, str, str]
) -> Generator[Any, Any, Any]:
    """Run the generator of a context manager in the thread of the operation, where `running_phase` says which phase runs.

    The host program gets its own context manager, with this generator in it. All steps are in one frame, without an object per phase:
    with a `PhaseSum` for each and a function that switches between them, LangGraph's `put` on SQLite took 0.9 µs more (of 25).
    """
    entering, body, leaving = phases
    begun = entered = used = _monotonic() - operation.start
    first = second = third = 0
    try:
        operation.running_phase = first = next(operation.phase_numbers)
        if first <= MARKED_PHASES and operation.open_page:  # else another operation may have the page by now
            operation.page.marks[2 * first] = begun << 12 | PHASE_CODES[entering]
    except Exception as fault:
        record_fault(fault)
    try:
        value = next(inner)
    except BaseException as error:
        _end_first_use(operation, (), (entering, first, begun), error)
        if isinstance(error, StopIteration):  # `contextlib` says that there was no value; raised here, it would be another error
            return
        raise
    try:
        entered = _monotonic() - operation.start
        operation.running_phase = second = next(operation.phase_numbers)
        if second <= MARKED_PHASES and operation.open_page:
            marks = operation.page.marks
            marks[2 * first + 1] = entered << 12 | 1
            marks[2 * second] = entered << 12 | PHASE_CODES[body]
    except Exception as fault:
        record_fault(fault)
    wait = entering, first, 0, begun, entered, None
    try:
        yield value
    except BaseException as error:
        # Not a failure: the consumer of a generator stopped early.
        _end_first_use(operation, (wait,), (body, second, entered), None if isinstance(error, GeneratorExit) else error)
        yield from _throw(inner, error)
        return
    rows: tuple[PhaseRow, ...] = (wait,)
    last = body, second, entered
    if leaving != body:
        try:
            used = _monotonic() - operation.start
            operation.running_phase = third = next(operation.phase_numbers)
            if third <= MARKED_PHASES and operation.open_page:
                marks = operation.page.marks
                marks[2 * second + 1] = used << 12 | 1
                marks[2 * third] = used << 12 | PHASE_CODES[leaving]
        except Exception as fault:
            record_fault(fault)
        rows, last = (wait, (body, second, 0, entered, used, None)), (leaving, third, used)
    try:
        yield from inner
    except BaseException as error:
        _end_first_use(operation, rows, last, error)
        raise
    _end_first_use(operation, rows, last, None)


def _end_first_use(
    operation: LibraryOperation, rows: tuple[PhaseRow, ...], last: tuple[str, int, int], error: BaseException | None
) -> None:
    """End the last phase, with the exception that ended it, if any, and add it and the phases before it to the operation."""
    try:
        phase, number, start = last
        end = _monotonic() - operation.start
        operation.running_phase = 0
        if number <= MARKED_PHASES and operation.open_page:
            operation.page.marks[2 * number + 1] = end << 12 | 1
        operation.first_use += (*rows, (phase, number, 0, start, end, None))
        if error is not None:
            operation.total(phase).fail(operation, error)
    except Exception as fault:
        record_fault(fault)


def _throw(inner: Generator[Any, Any, Any], error: BaseException) -> Generator[Any, Any, Any]:
    """Raise an exception where the generator of a context manager waits. It may end there, raise another one, or go on by mistake."""
    try:
        value = inner.throw(error)
    except StopIteration:
        return
    yield value


_OBSERVED_STEPS: Final = _observe_first_use.__code__


class _ObservedManager:
    """Stands in for a context manager of the library that is asynchronous, or that is not used in the thread of the operation.

    A context variable says which phase runs.
    """

    __slots__ = ("_manager", "_operation", "_phases", "_start", "_token", "_total")

    _start: int
    """When the current call of the running phase started."""
    _token: Any
    """Sets the context variable back."""

    def __init__(self, manager: Any, operation: LibraryOperation, phases: tuple[str, str, str]) -> None:
        self._manager, self._operation, self._phases = manager, operation, phases
        self._total: PhaseSum | None = None
        """The running phase."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def _switch(self, phase: str | None, error: BaseException | None = None) -> None:
        """End the running phase, with the exception that ended it, and start the next one."""
        try:
            operation, total = self._operation, self._total
            if total is not None:
                total.end(operation, self._start, error)
                self._reset_position()
            self._total = None
            if phase is not None and operation.open_page:
                self._total = total = operation.total(phase)
                self._token = _set_position((operation, total.number, None))
                self._start = total.begin(operation)
        except Exception as fault:
            record_fault(fault)

    def _reset_position(self) -> None:
        try:
            _reset_position(self._token)
        except ValueError:  # left in another context than it was entered in, such as a generator's
            _set_position(None)

    def __enter__(self) -> Any:
        self._switch(self._phases[0])
        try:
            value = self._manager.__enter__()
        except BaseException as error:
            self._switch(None, error)
            raise
        self._switch(self._phases[1])
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
        self._switch(self._phases[0])
        try:
            value = await self._manager.__aenter__()
        except BaseException as error:
            self._switch(None, error)
            raise
        self._switch(self._phases[1])
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
        _, body, leaving = self._phases
        if error is not None and not isinstance(error, GeneratorExit):  # not a failure: the consumer of a generator stopped early
            self._switch(None, error)
        elif leaving != body:
            self._switch(leaving)
