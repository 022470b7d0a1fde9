"""The span that is current in a trace that a sampler left out: whoever begins something in it sees that, and leaves it out too."""

from __future__ import annotations

from typing import Protocol

from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from ckpt_observe.record.ids import new_span_id


class LeftOut(Protocol):
    """The operation that it stands for."""

    trace_id: str


class Unsampled(NonRecordingSpan):
    """Its context is made when somebody asks: most often nobody does, and it is the dear part."""

    def __init__(self, operation: LeftOut) -> None:
        self.operation = operation
        self._made: SpanContext | None = None

    def get_span_context(self) -> SpanContext:
        if self._made is None:
            trace_id, span_id = int(self.operation.trace_id, 16), int(new_span_id(), 16)
            self._made = SpanContext(trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.DEFAULT))
        return self._made
