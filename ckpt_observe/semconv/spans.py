"""Names of spans and of their events."""

from __future__ import annotations

from typing import Final, NamedTuple


class SpanSpec(NamedTuple):
    """A kind of span. `parent` says in words what its parent span is."""

    name: str
    parent: str
    meaning: str


SCOPE: Final = "ckpt_observe"
"""Name of the instrumentation scope of our spans and metrics."""
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of OpenTelemetry's semantic conventions that its names in our spans, metrics and resources follow."""

SPANS: Final = (
    SpanSpec("task {name}", "the caller's span, if any", "A run that makes checkpoints, such as an agent or a training job."),
    SpanSpec("checkpoint.{operation}", "the task, or the caller's span, if any", "An operation on checkpoints."),
    SpanSpec("checkpoint.{phase}", "its operation, or an enclosing phase", "A part of an operation."),
)

OPERATION_PREFIX: Final = "checkpoint."
TASK_PREFIX: Final = "task "

EVENT_EXCEPTION: Final = "exception"
"""Span event for a failure, as defined by OpenTelemetry. Laminar shows a span as failed only if it has this event."""

EVENT_HOOK_FAILED: Final = "checkpoint.hook_failed"
"""Span event for an exception of a hook or context provider of the program. The operation itself did not fail."""

EXCEPTION_TYPE: Final = "exception.type"
EXCEPTION_MESSAGE: Final = "exception.message"
EXCEPTION_STACKTRACE: Final = "exception.stacktrace"
