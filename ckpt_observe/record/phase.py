"""A phase: one part of an operation. While it runs it is two words in the operation's page; its whole story is in the operation's end."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from opentelemetry import trace
from opentelemetry.context import get_current

from ckpt_observe.record import resources
from ckpt_observe.record.classify import classify
from ckpt_observe.record.current import CurrentSpan
from ckpt_observe.record.failure import described
from ckpt_observe.record.guard import fault
from ckpt_observe.record.parents import SPAN_KEY
from ckpt_observe.semconv import events

if TYPE_CHECKING:
    from ckpt_observe.record.operation import Operation

_MARKED: Final = events.MARKED_PHASES
_code_of = events.PHASE_CODES.get
_monotonic, _thread = time.perf_counter_ns, threading.get_ident


class Phase(CurrentSpan):
    """Use it in a `with`."""

    __slots__ = ("_started", "number", "operation", "parent")

    number: int
    parent: int | str

    def __init__(self, operation: Operation, name: str) -> None:
        self.operation = operation
        self.name = name
        self._attributes = None
        self._token = None

    def __enter__(self) -> Self:
        operation = self.operation
        if operation.live:
            try:
                here = get_current()
                above: Any = here.get(SPAN_KEY)
                self.parent = parent = 0 if above is operation else self._parent(above)
                self.number = number = next(operation.numbers)
                self._started = started = _monotonic()
                code = _code_of(self.name)
                if code and number <= _MARKED and parent.__class__ is int:
                    operation.page.mark(2 * number, (started - operation.started) << 12 | parent << 8 | code)
                else:
                    operation.write((events.PHASE, operation.span_id, started + operation.offset, number, parent, self.name))
                self.make_current(here, SPAN_KEY)
            except Exception as error:
                fault(error)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._token is None:
            return
        try:
            self.suspend()
            operation = self.operation
            ended = _monotonic()
            number = self.number
            if number <= _MARKED:
                operation.page.mark(2 * number + 1, (ended - operation.started) << 12 | 1)
            if ended - self._started > resources.WORTH_ASKING and operation.thread == _thread():
                self.note(operation.cpu_since_last())
            if error is not None:
                self._fail(error)
            offset = operation.offset
            operation.phases.append((self.name, number, self.parent, self._started + offset, ended + offset, self._attributes))
            if number > _MARKED or self.name not in events.PHASE_CODES:
                operation.write((events.DONE, operation.span_id, ended + offset, number))
        except Exception as own:
            fault(own)

    def _parent(self, above: Any) -> int | str:
        """The enclosing phase; or somebody else's span within the operation, if this phase is under one; or the operation."""
        operation = self.operation
        if type(above) is Phase:
            return above.number if above.operation is operation else 0
        if isinstance(above, trace.Span):
            context = above.get_span_context()
            if f"{context.trace_id:032x}" == operation.trace_id and context.span_id != int(operation.span_id, 16):
                return f"{context.span_id:016x}"
        return 0

    def _fail(self, error: BaseException) -> None:
        if self.operation.failed_phase is None:
            self.operation.failed_phase = self.name
        found = classify(error)
        self.note(found.attributes(self.name))
        if found.outcome == "error":
            self.note(described(error, stack=False))

    def ids(self) -> tuple[str, str]:
        return self.operation.trace_id, events.phase_span_id(self.operation.span_id, self.number)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        self.operation.add_event(name, attributes, timestamp)

    def add_link(self, context: trace.SpanContext, attributes: Any = None) -> None:
        self.operation.add_link(context, attributes)

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        self.operation.record_exception(exception, attributes, timestamp, escaped)

    def end(self, end_time: int | None = None) -> None:  # noqa: ARG002 - OpenTelemetry's name and signature
        self.__exit__(None, None, None)
