"""The words by which sentences refer to an operation: what it is, its exception, the time in its phases."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from ckpt_observe.query import ObservedOperation
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.spans import EVENT_EXCEPTION, EXCEPTION_MESSAGE, EXCEPTION_TYPE
from ckpt_observe.semconv.values import PHASES

_MAX_MESSAGE: Final = 600
"""Characters of the message of an exception in a sentence."""


def kind_name(operation: ObservedOperation) -> str:
    """Return `save`, `load`, ..., `task`, or `span` for one of another library."""
    return operation.name if operation.kind == "operation" else operation.kind


def describe(operation: ObservedOperation) -> str:
    """Return what it is, such as `save of step 4 of demo-agent (run run-1)`."""
    if operation.kind == "operation":
        step = operation.attributes.get(names.STEP)
        text = operation.name if step is None else f"{operation.name} of step {step}"
        text += f" of {operation.task_title}" if operation.task_title else ""
    else:
        text = f"{operation.kind} {operation.name}"
    return text if operation.task_id is None else f"{text} (run {operation.task_id})"


def describe_phase(phase: str) -> str:
    """Return the name of a phase and what is done in it: `write (write the bytes to the store and make them durable)`."""
    meaning = PHASES.get(phase, "").split(". ")[0].split(" (")[0].rstrip(".")
    return f"{phase} ({meaning[0].lower()}{meaning[1:]})" if meaning else phase


def exception_text(operation: ObservedOperation) -> str:
    """Return type and message of the exception that ended the operation, or an empty string."""
    event = next((event for event in reversed(operation.events) if event.name == EVENT_EXCEPTION), None)
    if event is None:
        return ""
    message = str(event.attributes.get(EXCEPTION_MESSAGE, ""))
    message = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]} ..."
    return ": ".join(filter(None, (str(event.attributes.get(EXCEPTION_TYPE, "")), message)))


def phase_seconds(operation: ObservedOperation, now_unix_nano: int) -> dict[str, float]:
    """Return the seconds in each phase. A phase inside another one is part of it."""
    inner = {phase.span_id for phase in operation.phases}
    seconds: defaultdict[str, float] = defaultdict(float)
    for phase in operation.phases:
        if phase.parent_span_id not in inner:
            end = now_unix_nano if phase.end_unix_nano is None else phase.end_unix_nano
            seconds[phase.name] += max(0, end - phase.start_unix_nano) / 1e9
    return dict(seconds)
