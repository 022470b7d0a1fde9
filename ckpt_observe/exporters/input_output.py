"""What an operation, phase or task was given and what came of it, for pages that show each span as input and output.

Only ids, steps, sizes, counts and errors, never content of a state: all of it is in the attributes and events of the span.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.spans import EVENT_EXCEPTION, EXCEPTION_MESSAGE, EXCEPTION_TYPE, OPERATION_PREFIX
from ckpt_observe.span import Span
from ckpt_observe.support.formatting import format_duration, format_size

_INPUT: Final = (
    names.PHASE, names.ID, names.STEP, names.SYSTEM, names.STORE, names.LOCATION, names.FORMAT, names.CODEC, names.PHASE_BYTES_IN,
)  # fmt: skip
_OUTPUT: Final = (
    names.OUTCOME, names.SIZE_SERIALIZED, names.SIZE_STORED, names.RATIO, names.COUNT, names.PHASE_BYTES_OUT, names.PHASE_CALLS,
    names.SOURCE_AGE, names.STEPS_SINCE, names.ERROR_CLASS, names.ERROR_CODE, names.ERROR_PHASE,
)  # fmt: skip
_TASK_INPUT: Final = (names.TASK_NAME, names.TASK_ID, names.RUN_ID, names.TOTAL_STEPS, names.INTERVAL, names.RANK, names.WORLD_SIZE)
_PLURALS: Final = {"copy": "copies", "verify": "verifies"}
_MAX_ERROR: Final = 200
"""Characters of an error in a summary; the whole message is in the `exception` event."""
_encode = msgspec.json.Encoder().encode


def span_input(span: Span) -> dict[str, Any]:
    """Return what identifies the operation or phase; for a task, its name, id and declared length."""
    return _select(_TASK_INPUT if is_task(span) else _INPUT, span.attributes)


def span_output(span: Span) -> dict[str, Any]:
    """Return outcome, sizes and error; for a task, the number and failures of its operations by kind, and the bytes that they stored."""
    output = _select(_OUTPUT, span.attributes)
    return {**output, **_task_counts(span.attributes)} if is_task(span) else output


def summary(span: Span) -> dict[str, str]:
    """Return one line under the key `summary`, such as `step 3 · 12.2 kB → 973 B` or `12 saves (1 failed), 3 loads · 146 kB`.

    Nothing for a phase, and if there is nothing to say.
    """
    if names.PHASE in span.attributes:
        return {}
    parts = _task_parts(span.attributes) if is_task(span) else _operation_parts(span)
    if span.status == "error":
        parts.append(_describe_error(span))
    return {"summary": " · ".join(parts)} if parts else {}


def is_task(span: Span) -> bool:
    """Return whether the span is a task, and neither an operation nor a phase."""
    return names.OPERATION not in span.attributes and names.PHASE not in span.attributes


def describe_outcome(span: Span) -> str:
    """Return the outcome of a failed span, with the phase in which it failed if that is known."""
    outcome = str(span.attributes.get(names.OUTCOME, "error"))
    phase = span.attributes.get(names.ERROR_PHASE)
    return f"{outcome} in {phase}" if phase else outcome


def finite(value: Any) -> Any:
    """Return NaN and infinity as strings, because JSON does not have them; other values unchanged."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def to_json(values: Mapping[str, Any]) -> str:
    """Return the values as a JSON object."""
    return _encode(values).decode()


def _select(keys: Sequence[str], attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(OPERATION_PREFIX): finite(attributes[key]) for key in keys if key in attributes}


def _operation_parts(span: Span) -> list[str]:
    attributes = span.attributes
    parts = [f"step {attributes[names.STEP]}"] if names.STEP in attributes else []
    if span.status == "error":
        return parts
    sizes = [attributes.get(name) for name in (names.SIZE_SERIALIZED, names.SIZE_STORED)]
    texts = dict.fromkeys(format_size(size) for size in sizes if isinstance(size, int))
    parts += [" → ".join(texts)] if texts else []
    age = attributes.get(names.SOURCE_AGE)
    parts += [f"saved {format_duration(age)} before"] if isinstance(age, int | float) and math.isfinite(age) else []
    return parts


def _task_parts(attributes: Mapping[str, Any]) -> list[str]:
    counts = ", ".join(_describe_count(*row) for row in _operation_counts(attributes))
    stored = attributes.get(names.TASK_STORED)
    return [*filter(None, (counts, format_size(stored) if isinstance(stored, int) and stored > 0 else ""))]


def _describe_count(operation: str, count: int, failures: int) -> str:
    noun = operation if count == 1 else _PLURALS.get(operation, f"{operation}s")
    return f"{count} {noun} ({failures} failed)" if failures else f"{count} {noun}"


def _operation_counts(attributes: Mapping[str, Any]) -> list[tuple[str, int, int]]:
    """Return each kind of operation of a task, with its number and failures. A task whose process died has none."""
    columns = [attributes.get(name) for name in (names.TASK_OPERATIONS, names.TASK_COUNTS, names.TASK_FAILURES)]
    return list(zip(*columns, strict=False)) if all(isinstance(column, list) for column in columns) else []


def _task_counts(attributes: Mapping[str, Any]) -> dict[str, Any]:
    rows = _operation_counts(attributes)
    if not rows:
        return {}
    return {
        "operations": {operation: count for operation, count, _ in rows},
        "failures": {operation: failures for operation, _, failures in rows if failures},
        "stored": attributes.get(names.TASK_STORED),
    }


def _describe_error(span: Span) -> str:
    """Return the exception in one line; without one, the outcome."""
    for event in span.events:
        if event.name == EVENT_EXCEPTION:
            message = " ".join(str(event.attributes.get(EXCEPTION_MESSAGE, "")).split())
            return f"{event.attributes.get(EXCEPTION_TYPE, '')}: {message}"[:_MAX_ERROR]
    return describe_outcome(span)
