"""Span names and the events on them."""

from __future__ import annotations

from typing import Final, NamedTuple


class SpanSpec(NamedTuple):
    """One kind of span."""

    name: str
    parent: str
    meaning: str


SPANS: Final = (
    SpanSpec("task {name}", "the caller's span", "A run that makes checkpoints: an agent, a training job."),
    SpanSpec("checkpoint.{operation}", "task, or the caller's span", "One operation on checkpoints."),
    SpanSpec("checkpoint.{phase}", "its operation, or an enclosing phase", "One part of an operation."),
)

OPERATION_PREFIX: Final = "checkpoint."
TASK_PREFIX: Final = "task "

EVENT_EXCEPTION: Final = "exception"
"""Name of the span event for a failure. OpenTelemetry's; and the only thing by which Laminar shows an error."""

EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
