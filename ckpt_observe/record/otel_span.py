"""An operation as others see it while it is current: OpenTelemetry's span."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Final, Protocol

from opentelemetry import trace

from ckpt_observe.record import redact
from ckpt_observe.record.failure import described
from ckpt_observe.semconv import events, spans

_SAMPLED: Final = trace.TraceFlags(trace.TraceFlags.SAMPLED)


class Described(Protocol):
    """What attributes can be said of: an operation, or a phase of it."""

    def set(self, attributes: Mapping[str, Any]) -> None: ...


class OtelSpan(trace.Span):
    """What the host and other instrumentations say of the current span is said of the operation, or of the phase that runs in it."""

    __slots__ = ()

    live: list[Any]
    span_id: str

    @abstractmethod
    def ids(self) -> tuple[str, str]: ...
    @abstractmethod
    def innermost(self) -> Described: ...
    @abstractmethod
    def now(self) -> int: ...
    @abstractmethod
    def write(self, event: tuple[Any, ...]) -> None: ...
    @abstractmethod
    def link(self, trace_id: str, span_id: str, attributes: Mapping[str, Any] | None = None) -> None: ...
    @abstractmethod
    def finish(self, error: BaseException | None = None) -> None: ...

    def get_span_context(self) -> trace.SpanContext:
        trace_id, span_id = self.ids()
        return trace.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=_SAMPLED)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self.innermost().set(attributes)

    def set_attribute(self, key: str, value: Any) -> None:
        self.set_attributes({key: value})

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        if self.live:  # what is no name or no time would be a span that nobody can read
            moment = timestamp if isinstance(timestamp, int) and 0 < timestamp < 1 << 63 else self.now()
            self.write((events.EVENT, self.span_id, moment, str(redact.value(name)), redact.attributes(attributes)))

    def add_link(self, context: trace.SpanContext | None, attributes: Any = None) -> None:
        if context is not None:
            self.link(f"{context.trace_id:032x}", f"{context.span_id:016x}", attributes)

    def record_exception(self, exception: BaseException, attributes: Any = None, timestamp: Any = None, escaped: bool = False) -> None:
        self.add_event(spans.EVENT_EXCEPTION, {**described(exception, stack=True), **(attributes or {})}, timestamp)

    def is_recording(self) -> bool:
        return bool(self.live)

    def update_name(self, name: str) -> None:
        """Ignored: the registry names our spans."""

    def set_status(self, status: Any, description: str | None = None) -> None:
        """Ignored: the outcome is the status."""

    def end(self, end_time: int | None = None) -> None:
        self.finish()
