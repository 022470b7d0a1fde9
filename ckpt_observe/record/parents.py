"""Whose child an operation is: the current OpenTelemetry span, else Laminar's, else `TRACEPARENT`, else nobody's."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, Context, create_key, get_current

from ckpt_observe.record.recorder import recorder
from ckpt_observe.record.unsampled import Unsampled
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import laminar
from ckpt_observe.semconv.events import ancestor

SPAN_KEY: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))
"""Where OpenTelemetry keeps the current span: asked of its public function rather than taken from its private names."""
TASK_KEY: Final = create_key("ckpt_observe-task")
SUPPRESSED: Final = _SUPPRESS_INSTRUMENTATION_KEY
"""Where OpenTelemetry's `suppress_instrumentation()` says that nothing is to be recorded; older code says it by name."""
SUPPRESSED_BY_NAME: Final = "suppress_instrumentation"

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


class Parent(NamedTuple):
    """Trace and span of a parent, and whether that trace is recorded.

    Of Laminar's spans also the chain down to it, and the session and user that it was given.
    """

    trace: str
    span: str
    sampled: bool
    chain: tuple[str, ...] | None = None
    facts: Mapping[str, Any] = {}


_LEFT_OUT: Final = Parent("f" * 32, "f" * 16, sampled=False)
"""Stands for any trace of ours that was left out: by its id, too, no ratio keeps it."""


def observing() -> bool:
    """Whether an operation that begins here may be recorded; what this does not see is decided when it begins.

    For instrumentors, before they look at the call: in a trace that is left out nothing more is done for it.
    """
    if not recorder.on:
        return False
    above = get_current().get(SPAN_KEY)
    if type(above) is Unsampled:
        return False
    if type(above) is not trace.NonRecordingSpan or recorder.samples is not None:
        return True
    context = above.get_span_context()
    return context.trace_flags.sampled or not context.is_valid


def find(current: Any, traceparent: str) -> Parent | None:
    """The parent of an operation, given what is current in the OpenTelemetry context."""
    if current is None and not traceparent and "lmnr" not in sys.modules:  # nothing to look at: the common root
        return None
    if type(current) is Unsampled:
        return _LEFT_OUT
    return _of(current) or _of(_laminar_span()) or parse(traceparent)


def parse(traceparent: str) -> Parent | None:
    """A W3C `traceparent`, or None if it is not one."""
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    return Parent(match[1], match[2], bool(int(match[3], 16) & 1))


def within(span: Any, trace_id: str) -> str:
    """The id of a span if it is of that trace, else empty."""
    found = _of(span)
    return found.span if found is not None and found.trace == trace_id else ""


def _of(span: Any) -> Parent | None:
    if not isinstance(span, trace.Span):
        return None
    context = span.get_span_context()
    if not context.is_valid:
        return None
    trace_id, span_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
    if not context.trace_flags.sampled:
        return Parent(trace_id, span_id, sampled=False)
    attributes = getattr(span, "attributes", None) or {}
    facts = {ours: attributes[theirs] for ours, theirs in _FACTS if theirs in attributes}
    return Parent(trace_id, span_id, True, _chain(attributes), facts)


_FACTS: Final = ((names.SESSION_ID, laminar.SESSION), (names.USER_ID, laminar.USER))


def _chain(attributes: Mapping[str, Any]) -> tuple[str, ...] | None:
    ids, path = attributes.get(laminar.IDS_PATH), attributes.get(laminar.PATH)
    if not ids or not path or len(ids) != len(path):
        return None
    return tuple(ancestor(laminar.span_id(each), "", name) for each, name in zip(ids, path, strict=True))


def _laminar_span() -> Any:
    """Laminar keeps a context of its own, which reaches threads where OpenTelemetry's does not. Never imports lmnr: 350 ms, 650 modules."""
    laminar = getattr(sys.modules.get("lmnr"), "Laminar", None)
    if laminar is None or not laminar.is_initialized():
        return None
    return laminar.get_current_span()
