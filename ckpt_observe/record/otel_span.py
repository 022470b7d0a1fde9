"""An operation as an OpenTelemetry span: what other code sees and sets while the operation is the current span."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from time import perf_counter_ns as _monotonic
from typing import Any, Final, Protocol

from opentelemetry import trace

from ckpt_observe.record import redact, trace_state
from ckpt_observe.record.encoding import encode_line
from ckpt_observe.record.failures import exception_attributes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.recorder import Page
from ckpt_observe.record.trace_context import UnsampledSpan, parse_traceparent
from ckpt_observe.semconv import events, spans

_SAMPLED: Final = trace.TraceFlags(trace.TraceFlags.SAMPLED)
_UNSAMPLED: Final = trace.TraceFlags(trace.TraceFlags.DEFAULT)


class HasAttributes(Protocol):
    """An operation, or a phase of it."""

    def set(self, attributes: Mapping[str, Any]) -> None: ...


class OtelSpan(trace.Span):
    """The span interface of an operation. Attributes set on it go to the running `Phase`, if there is one."""

    __slots__ = ()

    open_page: list[Page]
    page: Page
    trace_id: str
    span_id: str
    trace_state: str
    sampled: bool
    clock_offset: int

    @abstractmethod
    def ids(self) -> tuple[str, str]: ...
    @abstractmethod
    def attribute_owner(self) -> HasAttributes: ...
    @abstractmethod
    def finish(self, error: BaseException | None = None) -> None: ...

    def get_span_context(self) -> trace.SpanContext:
        """Return the ids of the running phase, or of the operation, and the `tracestate` of the trace."""
        trace_id, span_id = self.ids()
        flags = _SAMPLED if self.sampled else _UNSAMPLED
        state = trace_state.build(self.trace_state) if self.trace_state else trace.DEFAULT_TRACE_STATE
        return trace.SpanContext(int(trace_id, 16), int(span_id, 16), False, flags, state)

    def traceparent(self) -> str:
        """Return the W3C trace context of this operation, or an empty string if it is not recorded."""
        return f"00-{self.trace_id}-{self.span_id}-{self.sampled:02}" if self.span_id else ""

    def is_recording(self) -> bool:
        """Return whether the operation is recorded and running."""
        return bool(self.open_page)

    def now(self) -> int:
        """Return the Unix time in nanoseconds, by the monotonic clock."""
        return _monotonic() + self.clock_offset

    def write(self, event: tuple[Any, ...]) -> bool:
        """Append a line to the page, if the operation is running. Return False if it is not, or if the page is full."""
        try:
            return bool(self.open_page) and self.page.append(encode_line(event))
        except Exception as error:
            record_fault(error)
            return False

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes of the running phase, or of the operation."""
        self.attribute_owner().set(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        """Set one attribute of the running phase, or of the operation."""
        try:
            self.set_attributes({key: value})
        except Exception as error:  # a key without a hash
            record_fault(error)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        """Record an event. An invalid name is converted to text, an invalid time replaced with now: else no backend could read the span."""
        if self.open_page:
            time_ns = timestamp if isinstance(timestamp, int) and 0 < timestamp < 1 << 63 else self.now()
            self.write((events.EVENT, self.span_id, time_ns, redact.name(name), redact.attributes(attributes)))

    def link(self, trace_id: str, span_id: str, attributes: Mapping[str, Any] | None = None) -> None:
        """Link another span, such as the save that a restore reads. Invalid ids are ignored, as in OpenTelemetry."""
        try:
            if self.open_page and (target := parse_traceparent(f"00-{trace_id}-{span_id}-01".lower())):
                self.write((events.LINK, self.span_id, self.now(), target.trace, target.span, redact.attributes(attributes)))
        except Exception as error:  # raised by the `__str__` of an argument
            record_fault(error)

    def add_link(self, context: trace.SpanContext | None, attributes: Any = None) -> None:
        """Link another span by its context."""
        if isinstance(context, trace.SpanContext):
            self.link(f"{context.trace_id:032x}", f"{context.span_id:016x}", attributes)

    def record_exception(self, exception: BaseException, attributes: Any = None, timestamp: Any = None, escaped: bool = False) -> None:
        """Record, as an event, an exception that the host program handled."""
        if isinstance(exception, BaseException):
            event_attributes = {**exception_attributes(exception, stack=True), **redact.attributes(attributes)}
            self.add_event(spans.EVENT_EXCEPTION, event_attributes, timestamp)

    def update_name(self, name: str) -> None:
        """Do nothing: the names of our spans are fixed."""

    def set_status(self, status: Any, description: str | None = None) -> None:
        """Do nothing: the status follows from the outcome."""

    def end(self, end_time: int | None = None) -> None:
        """End the operation now, without an error. `end_time` is ignored."""
        self.finish()


def is_own_span(span: Any) -> bool:
    """Return whether a span is an operation or task of ours, recorded or not."""
    return isinstance(span, OtelSpan) or type(span) is UnsampledSpan
