"""Phases: the parts of an operation. A running phase is two words in the operation's page; its record is part of the `end` line.

Phases with a name of their own, with a span of another library as parent, or after the first `MARKED_PHASES` of an operation are written
as lines instead.

`Phase` is for `with` statements, `phase_wrapper` for patched functions. Both do the same; the wrapper has all steps written out in one
frame, because it is the most frequent thing that we do in threads of the host program.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry.context import Context

from ckpt_observe.record import redact, resource_usage
from ckpt_observe.record.failures import classify, exception_attributes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import Operation, current_position
from ckpt_observe.record.trace_context import SPAN_KEY, attach, detach, get_current, span_id_in_trace
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from ckpt_observe.semconv.events import MARKED_PHASES, PHASE_CODES
from ckpt_observe.support.host_exceptions import raise_host_exception

_LEAST_DURATION: Final = resource_usage.LEAST_PHASE
_monotonic, _thread = time.perf_counter_ns, threading.get_ident
_get_position, _set_position, _reset_position = current_position.get, current_position.set, current_position.reset


class Phase:
    """One phase of an operation. Use it in a `with`."""

    __slots__ = ("_attributes", "_context_token", "_outer_position", "_position_token", "_start", "name", "number", "operation", "parent")

    number: int
    parent: int | str

    def __init__(self, operation: Operation, name: str) -> None:
        self.operation = operation
        self.name = redact.name(name)  # a number, say, must not break the operation's record
        self._attributes: dict[str, Any] | None = None
        self._position_token: Any = None
        self._outer_position: Any = None
        self._context_token: Any = None

    def __enter__(self) -> Self:
        operation = self.operation
        if operation.open_page:
            try:
                self._outer_position = position = _get_position()
                self.parent = max(position[1], operation.running_phase) if position is not None and position[0] is operation else 0
                context = get_current()
                enclosing: Any = context.get(SPAN_KEY)
                if enclosing is not operation:  # another library's span within the operation, or another thread than the operation's
                    if not isinstance(enclosing, Operation):
                        self.parent = span_id_in_trace(enclosing, operation.trace_id) or self.parent
                    self._context_token = attach(Context({**context, SPAN_KEY: operation}))
                self.number = number = next(operation.phase_numbers)
                self._start = start = _monotonic() - operation.start
                _record_begin(operation, self.name, number, self.parent, start)
                self._position_token = _set_position((operation, number, self))
            except BaseException as error:
                self._leave()  # if a signal handler raised, the block does not run, and nobody else leaves the phase
                record_fault(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._position_token is not None:
            try:
                end = _monotonic() - self.operation.start
                self._leave()
                _record_end(self.operation, self.name, self.number, self.parent, self._start, end, self._attributes, error)
            except Exception as caught:
                record_fault(caught)

    def _leave(self) -> None:
        token, self._position_token = self._position_token, None
        try:
            if token is not None:
                _reset_position(token)
            if self._context_token is not None:
                detach(self._context_token)
        except ValueError as error:  # left in another context than it was entered in
            raise_host_exception(error)
            _set_position(None)

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes, with names of docs/semconv.md or your own. Values must be small; secrets are redacted."""
        try:
            self._attributes = {**(self._attributes or {}), **redact.attributes(attributes)}
        except Exception as error:
            record_fault(error)

    def suspend(self) -> None:
        """Make the phase no longer current, without ending it: between two steps of a generator."""
        if self._position_token is not None:
            _set_position(self._outer_position)

    def release(self) -> None:
        """Let the caller go on, while the work continues elsewhere until the end of the phase."""
        self.suspend()

    def resume(self) -> None:
        """Make the phase current again."""
        if self._position_token is not None:
            _set_position((self.operation, self.number, self))


Sizes = tuple[int | None, int | None]
"""Bytes that went into a phase, and bytes that came out. None: not known."""


def no_sizes(_args: tuple[Any, ...], _result: Any) -> Sizes:
    """Return that the sizes of a phase are not known."""
    return None, None


def phase_wrapper(name: str, read_sizes: Callable[[tuple[Any, ...], Any], Sizes]) -> Callable[..., Any]:
    """Return a wrapt wrapper that makes each call of a function a phase of the current operation. Outside an operation it does nothing.

    `read_sizes(args, result)` returns how many bytes went in and came out; None for a number that is not known.
    """
    code = PHASE_CODES[name]

    def call(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        position = _get_position()
        if position is None:
            return wrapped(*args, **kwargs)
        operation = position[0]
        if not operation.open_page:  # it has ended, and another operation may have its page
            return wrapped(*args, **kwargs)
        if operation.thread != _thread():
            return call_in_other_thread(operation, wrapped, args, kwargs)
        outer, parent = operation.running_phase, position[1]
        if outer > parent:  # noqa: PLR1730 - `max` is a call
            parent = outer
        start = _monotonic() - operation.start
        # No call between this one and the `try`: a signal handler may raise after it.
        operation.running_phase = number = next(operation.phase_numbers)
        try:
            if number <= MARKED_PHASES:
                operation.page.marks[2 * number] = start << 12 | parent << 8 | code
            else:
                _record_begin(operation, name, number, parent, start)
        except BaseException as error:
            operation.running_phase = outer
            record_fault(error)
        try:
            result = wrapped(*args, **kwargs) if kwargs else wrapped(*args)
        except BaseException as error:
            operation.running_phase = outer
            _record_end_safely(operation, name, number, parent, start, _monotonic() - operation.start, None, error)
            raise
        operation.running_phase = outer
        end = _monotonic() - operation.start
        try:
            if number <= MARKED_PHASES and end - start < _LEAST_DURATION and operation.open_page:
                operation.page.marks[2 * number + 1] = end << 12 | 1
                operation.phases.append((name, number, parent, start, end, read_sizes(args, result)))
            else:
                _record_end(operation, name, number, parent, start, end, read_sizes(args, result), None)
        except Exception as error:
            record_fault(error)
        return result

    def call_in_other_thread(operation: Operation, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with Phase(operation, name) as phase:
            result = wrapped(*args, **kwargs)
            try:
                phase.set(_as_attributes(read_sizes(args, result)))
            except Exception as error:
                record_fault(error)
        return result

    return call


def _record_begin(operation: Operation, name: str, number: int, parent: int | str, start: int) -> None:
    code = PHASE_CODES.get(name)
    if code and number <= MARKED_PHASES and isinstance(parent, int):
        if operation.open_page:  # else another operation may have the page by now
            operation.page.marks[2 * number] = start << 12 | parent << 8 | code
    else:
        operation.write((events.PHASE, operation.span_id, start + operation.start + operation.clock_offset, number, parent, name))


def _record_end(
    operation: Operation, name: str, number: int, parent: int | str, start: int, end: int, attributes: Any, error: BaseException | None
) -> None:
    if end - start > _LEAST_DURATION and operation.thread == _thread():
        attributes = {**_as_attributes(attributes), **operation.read_cpu_time()}
    if error is not None:
        operation.add_phase_failure(name, error)
        attributes = {**_as_attributes(attributes), **failure_attributes(operation, name, error)}
    if name not in PHASE_CODES or number > MARKED_PHASES or isinstance(parent, str):
        offset = operation.start + operation.clock_offset
        phase = (name, number, parent, start + offset, end + offset, attributes)
        if not operation.write((events.DONE, operation.span_id, end + offset, phase)):
            operation.count_dropped_phase()
    elif operation.open_page:  # else another operation may have the page by now
        operation.page.marks[2 * number + 1] = end << 12 | 1
        operation.phases.append((name, number, parent, start, end, attributes))


def _record_end_safely(*arguments: Any) -> None:
    try:
        _record_end(*arguments)
    except Exception as error:
        record_fault(error)


def _as_attributes(attributes: dict[str, Any] | Sizes | None) -> dict[str, Any]:
    if isinstance(attributes, tuple):
        return {names.PHASE_BYTES_IN: attributes[0], names.PHASE_BYTES_OUT: attributes[1]}
    return attributes or {}


def failure_attributes(operation: Operation, name: str, error: BaseException) -> dict[str, Any]:
    """Return the attributes of a phase that failed."""
    failure = classify(error, name, operation.error_codes)
    return {**failure.attributes(name), **(exception_attributes(error, stack=False) if failure.outcome == "error" else {})}
