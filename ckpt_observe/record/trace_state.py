"""The W3C `tracestate` of a parent, which its children keep: what tracing systems add to a trace context, such as sampling thresholds.

It is stored as the text of the header. OpenTelemetry's object is built only if somebody asks the current span for its context.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from opentelemetry.trace import DEFAULT_TRACE_STATE, SpanContext, TraceState

MAX_LENGTH: Final = 512
"""Characters that are kept. W3C asks for at least that many; more would take up the page of the operation."""
_LONG_MEMBER: Final = 128
"""Characters of a member above which W3C asks to remove it first."""


def get_header(context: SpanContext) -> str:
    """Return the `tracestate` of a span context; an empty string if it has none."""
    trace_state = context.trace_state
    return "" if trace_state is DEFAULT_TRACE_STATE else _shorten(trace_state.to_header())


def parse_header(header: str) -> str:
    """Return the header in its normal form; an empty string if it is not valid, which OpenTelemetry logs."""
    return _shorten(TraceState.from_header([header]).to_header()) if header else ""


@lru_cache(64)
def build(header: str) -> TraceState:
    """Return the object for a header that `get_header` or `parse_header` returned."""
    return TraceState.from_header([header]) if header else DEFAULT_TRACE_STATE


def _shorten(header: str) -> str:
    """Remove whole members until the header is short enough: first those that are long, then those at the end, as W3C asks."""
    if len(header) <= MAX_LENGTH:
        return header
    members = header.split(",")
    for index in range(len(members) - 1, -1, -1):
        if len(members[index]) > _LONG_MEMBER and len(",".join(members)) > MAX_LENGTH:
            del members[index]
    while len(",".join(members)) > MAX_LENGTH:
        del members[-1]
    return ",".join(members)
