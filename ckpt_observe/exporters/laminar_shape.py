"""A span as Laminar's server and page need it. Pure; each function says what was seen there without it (server and page of June 2026)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, structs

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import laminar
from ckpt_observe.semconv.spans import EVENT_EXCEPTION, EXCEPTION_MESSAGE, EXCEPTION_TYPE, OPERATION_PREFIX
from ckpt_observe.span import Span, SpanEvent, SpanLink

RECOVERED: Final = "recovered exception"
LINK_TRACE: Final = "link.trace_id"
LINK_SPAN: Final = "link.span_id"

_INPUT: Final = (names.ID, names.STEP, names.SYSTEM, names.STORE, names.LOCATION, names.FORMAT, names.CODEC, names.PHASE_BYTES_IN)
_OUTPUT: Final = (
    names.OUTCOME, names.SIZE_SERIALIZED, names.SIZE_STORED, names.RATIO, names.COUNT, names.PHASE_BYTES_OUT,
    names.ERROR_CLASS, names.ERROR_CODE, names.ERROR_PHASE,
)  # fmt: skip
_METADATA: Final = (names.TASK_NAME, names.TASK_ID, "service.name")
_LLM: Final = ("gen_ai.", "ai.toolCall.", "lmnr.")
"""Names that would turn the span into a model call, or speak to Laminar in our place."""
_json = msgspec.json.Encoder().encode


def shape(span: Span) -> Span:
    """The span as it is sent; the same for the same span."""
    end = max(span.end_unix_nano, span.start_unix_nano)  # an end before the start: "No spans found"
    attributes = {
        **span.resource,  # neither resource nor links are stored
        **_links(span.links),
        **{_safe(name): _finite(value) for name, value in span.attributes.items()},
        **_association(span),
        **_path(span),
        **_summary(laminar.INPUT, _INPUT, span.attributes),
        **_summary(laminar.OUTPUT, _OUTPUT, span.attributes),
    }
    if names.OPERATION in span.attributes and span.parent_span_id:
        attributes[laminar.SPAN_TYPE] = "TOOL"  # the default view leaves out DEFAULT spans; on the root it would hide the tree
    return structs.replace(span, end_unix_nano=end, attributes=attributes, events=_events(span, end))


def _path(span: Span) -> dict[str, Any]:
    """From the root to the span, or nothing: a part of it makes a false root, and without it a running task's children are not seen."""
    if span.ancestors is UNSET:
        return {}
    chain = (*span.ancestors, (span.span_id, span.name))
    return {laminar.PATH: [name for _, name in chain], laminar.IDS_PATH: [laminar.span_uuid(id) for id, _ in chain]}


def _association(span: Span) -> dict[str, Any]:
    """What fills the columns and filters of the page; only as strings, and each key of the metadata alone."""
    told = {**span.resource, **span.attributes}
    found: dict[str, Any] = {laminar.METADATA + name: str(told[name]) for name in _METADATA if name in told}
    for theirs, ours in ((laminar.SESSION, names.SESSION_ID), (laminar.USER, names.USER_ID)):
        if ours in told:
            found[theirs] = str(told[ours])
    if names.OPERATION in span.attributes:
        found[laminar.TAGS] = ["checkpoint"]
    return found


def _summary(name: str, wanted: Sequence[str], attributes: Mapping[str, Any]) -> dict[str, str]:
    """Input or output: a string of JSON, for anything else is lost."""
    told = {key.removeprefix(OPERATION_PREFIX): _finite(attributes[key]) for key in wanted if key in attributes}
    return {name: _json(told).decode()} if told else {}


def _events(span: Span, end: int) -> tuple[SpanEvent, ...]:
    """The event `exception` if and only if the span failed: it alone makes a span red there, and its whole trace for good."""
    if span.status != "error":
        return tuple(structs.replace(event, name=RECOVERED) if event.name == EVENT_EXCEPTION else event for event in span.events)
    if any(event.name == EVENT_EXCEPTION for event in span.events):
        return span.events
    outcome = str(span.attributes.get(names.OUTCOME, "error"))
    phase = span.attributes.get(names.ERROR_PHASE)
    told = {
        EXCEPTION_TYPE: str(span.attributes.get(names.ERROR_TYPE, outcome)),
        EXCEPTION_MESSAGE: f"{outcome} in {phase}" if phase else outcome,
    }
    return (*span.events, SpanEvent(EVENT_EXCEPTION, end, told))


def _links(links: Sequence[SpanLink]) -> dict[str, Any]:
    return {LINK_TRACE: [link.trace_id for link in links], LINK_SPAN: [link.span_id for link in links]} if links else {}


def _safe(name: str) -> str:
    return f"own.{name}" if name.startswith(_LLM) else name


def _finite(value: Any) -> Any:
    """NaN and infinity become null there; their names do not."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
