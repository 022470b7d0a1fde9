"""What there is to know about a failed operation, one fact per line: the exception, the checkpoint, the consequences and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import spans
from ckpt_observe.span import Span
from ckpt_observe.support.advice import ADVICE
from ckpt_observe.support.formatting import format_size

_MAX_MESSAGE: Final = 600
"""Characters of a message that are shown. `ckpt-observe traces --json` prints all of it."""
_FACTS: Final = {"checkpoint": names.ID, "store": names.LOCATION, "impact": names.ERROR_IMPACT, "recovery": names.ERROR_RECOVERY}


def failure_details(span: Span) -> Iterator[str]:
    """Yield the facts about an operation or task that failed. Nothing for other spans: an operation explains the failure of its phases."""
    attributes = span.attributes
    if span.status != "error" or names.PHASE in attributes:
        return
    exception = _format_exception(span)
    if exception:
        yield exception
    if cause := attributes.get(names.ERROR_CAUSE):
        yield f"cause: {cause}"
    if names.OPERATION not in attributes:
        return
    for label, name in _FACTS.items():
        if text := attributes.get(name):
            yield f"{label}: {text}"
    memory = attributes.get(names.MEMORY_PEAK)
    if attributes.get(names.OUTCOME) == "interrupted" and isinstance(memory, int):
        yield f"memory: up to {format_size(memory)} before the process died"
    advice = ADVICE.get(str(attributes.get(names.ERROR_CODE)))
    if advice and advice not in exception:
        yield f"advice: {advice}"


def _format_exception(span: Span) -> str:
    """Return type and message of the exception that ended the operation, which is its last one."""
    event = next((event for event in reversed(span.events) if event.name == spans.EVENT_EXCEPTION), None)
    if event is None:
        return ""
    message = str(event.attributes.get(spans.EXCEPTION_MESSAGE, ""))
    shown = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]} ..."
    return ": ".join(filter(None, (str(event.attributes.get(spans.EXCEPTION_TYPE, "")), shown)))
