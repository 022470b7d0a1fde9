"""An operation as a row of the pages: what lists show and filter by, without its other attributes."""

from __future__ import annotations

from typing import Any

import msgspec

from ckpt_observe.query import ObservedOperation
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.spans import EVENT_EXCEPTION, EXCEPTION_MESSAGE, EXCEPTION_TYPE


class OperationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One operation or task."""

    kind: str
    name: str
    trace_id: str
    span_id: str
    start_unix_nano: int
    end_unix_nano: int | None
    """None while it is running."""
    outcome: str
    phase: str | None
    """The running phase, or that in which it failed."""
    task_title: str
    """The name of the task; without a task, the program."""
    task_name: str | None
    task_id: str | None
    system: str | None
    checkpoint_id: str | None
    step: int | None
    rank: int | None
    stored_bytes: int | None
    error_code: str | None
    error: str
    """Type and message of the exception, or an empty string."""


def row_of(operation: ObservedOperation) -> OperationRow:
    """Return the row of an operation."""
    attributes = operation.attributes
    return OperationRow(
        kind=operation.kind,
        name=operation.name,
        trace_id=operation.trace_id,
        span_id=operation.span_id,
        start_unix_nano=operation.start_unix_nano,
        end_unix_nano=operation.end_unix_nano,
        outcome=operation.outcome,
        phase=operation.phase,
        task_title=operation.task_title,
        task_name=operation.task_name,
        task_id=operation.task_id,
        system=operation.system,
        checkpoint_id=operation.checkpoint_id,
        step=_number(attributes.get(names.STEP)),
        rank=_number(attributes.get(names.RANK)),
        stored_bytes=operation.stored_bytes,
        error_code=_text(attributes.get(names.ERROR_CODE)),
        error=_error(operation),
    )


def _error(operation: ObservedOperation) -> str:
    for event in reversed(operation.events):
        if event.name == EVENT_EXCEPTION:
            return ": ".join(str(event.attributes[name]) for name in (EXCEPTION_TYPE, EXCEPTION_MESSAGE) if name in event.attributes)
    return ""


def _number(value: Any) -> int | None:
    """Return an int attribute. The host program may have set anything."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
