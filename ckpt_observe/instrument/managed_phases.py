"""Phases of a library's operations that are context managers: waiting for a connection, using it, and leaving it, which commits.

Outside an operation of its library, such a row does nothing. The phases of several uses within one operation are summed up (see
`record.phase_sum`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import _AsyncGeneratorContextManager, _GeneratorContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

from ckpt_observe.instrument.library_call import LibraryOperation
from ckpt_observe.instrument.wrappers import Args, Kwargs, Wrapper
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import current_position
from ckpt_observe.record.phase_sum import PhaseSum, start_phase

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

    def wrapper_for(self, _original: Any, _declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        system, phases_of = self.system, self.phases.get

        def call(wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
            manager = wrapped(*args, **kwargs)
            position = _get_position()
            if position is None or type(manager) not in _MANAGERS:
                return manager
            operation = position[0]
            if type(operation) is not LibraryOperation or not operation.open_page or (system and operation.call.system != system):
                return manager
            phases = phases_of(operation.name)
            return manager if phases is None else _ObservedManager(manager, operation, phases)

        return call


_MANAGERS: Final = (_GeneratorContextManager, _AsyncGeneratorContextManager)


class _ObservedManager:
    """Stands in for a context manager of the library, synchronous or asynchronous."""

    _start: int
    """When the current call of the running phase started."""
    _token: Any
    """Sets the context variable back."""

    __slots__ = ("_manager", "_operation", "_outer", "_phases", "_start", "_token", "_total")

    def __init__(self, manager: Any, operation: LibraryOperation, phases: tuple[str, str, str]) -> None:
        self._manager, self._operation, self._phases = manager, operation, phases
        self._total: PhaseSum | None = None
        """The running phase."""
        self._outer: int | None = None
        """The phase around this one, in the operation's thread. None: a context variable says which phase runs."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def _switch(self, phase: str | None, error: BaseException | None = None) -> None:
        """End the running phase, with the exception that ended it, and start the next one."""
        try:
            operation, total, outer, now = self._operation, self._total, self._outer, _monotonic()
            if total is not None:
                total.busy = busy = total.busy + now - self._start
                total.calls += 1
                if total.end_mark and operation.open_page:
                    operation.page.marks[total.end_mark] = (total.start + busy - operation.start) << 12 | 1
                if error is not None:
                    total.fail(operation, error)
                if outer is None:
                    self._reset_position()
            if phase is None or not operation.open_page:
                self._total = None
                if outer is not None:
                    operation.running_phase = outer
                return
            total = operation.sums.get(phase)
            if total is None:
                if outer is None:
                    total = operation.total(phase)
                else:
                    total = operation.sums.setdefault(phase, start_phase(operation, phase, outer, now))
            elif total.end_mark:
                operation.page.marks[total.end_mark] = 0
            if outer is None:
                self._token = _set_position((operation, total.number, None))
            else:
                operation.running_phase = total.number
            self._start, self._total = now, total
        except Exception as fault:
            record_fault(fault)

    def _reset_position(self) -> None:
        try:
            _reset_position(self._token)
        except ValueError:  # left in another context than it was entered in, such as a generator's
            _set_position(None)

    def __enter__(self) -> Any:
        position = _get_position()
        if self._operation.thread == _thread() and (position is None or not position[1]):
            self._outer = self._operation.running_phase
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
