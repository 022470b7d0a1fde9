"""Phases: the parts of an operation. While one runs it is two words in the operation's page; its story is in the operation's end.

`Phase` is for own code, `observed` makes a patched function one: the same steps, written out in one frame, because they are the most
frequent thing that we do in the host's thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry.context import Context, attach, detach, get_current

from ckpt_observe.record import parents, redact, resources
from ckpt_observe.record.classify import classify
from ckpt_observe.record.failure import described
from ckpt_observe.record.guard import fault
from ckpt_observe.record.operation import Operation, where
from ckpt_observe.record.parents import SPAN_KEY
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from ckpt_observe.semconv.events import MARKED_PHASES, PHASE_CODES

_WORTH_ASKING: Final = resources.WORTH_ASKING
_monotonic, _thread = time.perf_counter_ns, threading.get_ident
_get, _set, _reset = where.get, where.set, where.reset


class Phase:
    """One part of an operation, to be used in a `with`."""

    __slots__ = ("_attributes", "_here", "_outer", "_started", "_token", "name", "number", "operation", "parent")

    number: int
    parent: int | str

    def __init__(self, operation: Operation, name: str) -> None:
        self.operation = operation
        self.name = name if isinstance(name, str) else str(redact.value(name))  # a number, say: the operation must not be lost by it
        self._attributes: dict[str, Any] | None = None
        self._here: Any = None
        self._outer: Any = None
        self._token: Any = None

    def __enter__(self) -> Self:
        operation = self.operation
        if operation.live:
            try:
                self._outer = here = _get()
                self.parent = max(here[1], operation.running) if here is not None and here[0] is operation else 0
                context = get_current()
                above: Any = context.get(SPAN_KEY)
                if above is not operation:  # somebody else's span within the operation, or another thread than the operation's
                    if not isinstance(above, Operation):
                        self.parent = parents.within(above, operation.trace_id) or self.parent
                    self._token = attach(Context({**context, SPAN_KEY: operation}))
                self.number = number = next(operation.numbers)
                self._started = started = _monotonic()
                _begun(operation, self.name, number, self.parent, started)
                self._here = _set((operation, number, self))
            except Exception as error:
                fault(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._here is not None:
            try:
                ended = _monotonic()
                self._leave()
                _ended(self.operation, self.name, self.number, self.parent, self._started, ended, self._attributes, error)
            except Exception as own:
                fault(own)

    def _leave(self) -> None:
        here, self._here = self._here, None
        try:
            _reset(here)
            if self._token is not None:
                detach(self._token)
        except ValueError:  # left in another context than it was entered in
            _set(None)

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes: names of the registry, or your own. Values must be small; secrets are taken out."""
        try:
            self._attributes = {**(self._attributes or {}), **redact.attributes(attributes)}
        except Exception as error:
            fault(error)

    def suspend(self) -> None:
        """No longer current, though not ended: between two steps of a generator."""
        if self._here is not None:
            _set(self._outer)

    def resume(self) -> None:
        """Current again."""
        if self._here is not None:
            _set((self.operation, self.number, self))


Sizes = tuple[int | None, int | None]
"""Bytes that went into a phase, and that came out."""


def observed(name: str, read: Callable[[tuple[Any, ...], Any], Sizes]) -> Callable[..., Any]:
    """A wrapt wrapper that makes each call of a function a phase of the operation that runs there; without one it does nothing.

    `read(args, result)` gives the sizes.
    """
    code = PHASE_CODES[name]

    def call(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        here = _get()
        if here is None:
            return wrapped(*args, **kwargs)
        operation = here[0]
        if not operation.live:  # it has ended, and its page may be another's
            return wrapped(*args, **kwargs)
        if operation.thread != _thread():
            return elsewhere(operation, wrapped, args, kwargs)
        outer, parent = operation.running, here[1]
        if outer > parent:  # noqa: PLR1730 - `max` is a call
            parent = outer
        operation.running = number = next(operation.numbers)
        started = _monotonic()
        try:
            if number <= MARKED_PHASES:
                operation.page.marks[2 * number] = (started - operation.started) << 12 | parent << 8 | code
            else:
                _begun(operation, name, number, parent, started)
        except Exception as error:
            fault(error)
        try:
            result = wrapped(*args, **kwargs) if kwargs else wrapped(*args)
        except BaseException as error:
            operation.running = outer
            _guarded_end(operation, name, number, parent, started, _monotonic(), None, error)
            raise
        ended = _monotonic()
        operation.running = outer
        try:
            if number <= MARKED_PHASES and ended - started < _WORTH_ASKING and operation.live:
                operation.page.marks[2 * number + 1] = (ended - operation.started) << 12 | 1
                operation.phases.append((name, number, parent, started, ended, read(args, result)))
            else:
                _ended(operation, name, number, parent, started, ended, read(args, result), None)
        except Exception as error:
            fault(error)
        return result

    def elsewhere(operation: Operation, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with Phase(operation, name) as phase:
            result = wrapped(*args, **kwargs)
            try:
                phase.set(_named(read(args, result)))
            except Exception as error:
                fault(error)
        return result

    return call


def _begun(operation: Operation, name: str, number: int, parent: int | str, started: int) -> None:
    code = PHASE_CODES.get(name)
    if code and number <= MARKED_PHASES and isinstance(parent, int):
        if operation.live:  # else the page may be another operation's by now
            operation.page.marks[2 * number] = (started - operation.started) << 12 | parent << 8 | code
    else:
        operation.write((events.PHASE, operation.span_id, started + operation.offset, number, parent, name))


def _ended(
    operation: Operation, name: str, number: int, parent: int | str, started: int, ended: int, attributes: Any, error: BaseException | None
) -> None:
    offset = operation.offset
    if ended - started > _WORTH_ASKING and operation.thread == _thread():
        attributes = {**_named(attributes), **operation.cpu_since_last()}
    if error is not None:
        attributes = {**_named(attributes), **_failure(operation, name, error)}
    if name not in PHASE_CODES or number > MARKED_PHASES or isinstance(parent, str):
        told = (name, number, parent, started + offset, ended + offset, attributes)
        operation.write((events.DONE, operation.span_id, ended + offset, told))
    elif operation.live:  # else the page may be another operation's by now
        operation.page.marks[2 * number + 1] = (ended - operation.started) << 12 | 1
        operation.phases.append((name, number, parent, started, ended, attributes))


def _named(attributes: dict[str, Any] | Sizes | None) -> dict[str, Any]:
    if isinstance(attributes, tuple):
        return {names.PHASE_BYTES_IN: attributes[0], names.PHASE_BYTES_OUT: attributes[1]}
    return attributes or {}


def _guarded_end(*told: Any) -> None:
    try:
        _ended(*told)
    except Exception as error:
        fault(error)


def _failure(operation: Operation, name: str, error: BaseException) -> dict[str, Any]:
    if operation.failed_phase is None:
        operation.failed_phase = name
    found = classify(error)
    return {**found.attributes(name), **(described(error, stack=False) if found.outcome == "error" else {})}
