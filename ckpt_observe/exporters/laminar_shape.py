"""Changes spans to a form that Laminar displays well. Docstrings and comments say how it showed unchanged spans (June 2026)."""

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
"""Prefixes of attributes that would turn the span into a model call or control Laminar. They get the prefix `own.`."""
_json = msgspec.json.Encoder().encode


def shape(span: Span) -> Span:
    """Return the span in the form that is sent to Laminar. Equal spans give equal results."""
    end = max(span.end_unix_nano, span.start_unix_nano)  # a span that ends before it starts is shown as "No spans found"
    attributes = {
        **span.resource,  # Laminar does not store the resource and the links, so they become attributes
        **_links(span.links),
        **{_safe(name): _finite(value) for name, value in span.attributes.items()},
        **_association(span),
        **_path(span),
        **_summary(laminar.INPUT, _INPUT, span.attributes),
        **_summary(laminar.OUTPUT, _OUTPUT, span.attributes),
    }
    if names.OPERATION in span.attributes and span.parent_span_id:
        attributes[laminar.SPAN_TYPE] = "TOOL"  # the default view omits DEFAULT spans; on the root, TOOL would hide the tree
    return structs.replace(span, end_unix_nano=end, attributes=attributes, events=_events(span, end))


def _path(span: Span) -> dict[str, Any]:
    """Return the attributes for the path from the root to the span; none if its ancestors are unknown.

    Without a path, the children of a running task are hidden. A partial path would create a false root.
    """
    if span.ancestors is UNSET:
        return {}
    chain = (*span.ancestors, (span.span_id, span.name))
    return {laminar.PATH: [name for _, name in chain], laminar.IDS_PATH: [laminar.span_uuid(id) for id, _ in chain]}


def _association(span: Span) -> dict[str, Any]:
    """Return the attributes for Laminar's columns and filters: session, user, tags and metadata.

    All but the tags must be strings, and each metadata key is a separate attribute.
    """
    attributes = {**span.resource, **span.attributes}
    association: dict[str, Any] = {laminar.METADATA + name: str(attributes[name]) for name in _METADATA if name in attributes}
    for laminar_name, name in ((laminar.SESSION, names.SESSION_ID), (laminar.USER, names.USER_ID)):
        if name in attributes:
            association[laminar_name] = str(attributes[name])
    if names.OPERATION in span.attributes:
        association[laminar.TAGS] = ["checkpoint"]
    return association


def _summary(name: str, keys: Sequence[str], attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return the attribute `name` with the attributes in `keys` as a JSON string, which is the only type that Laminar accepts here.

    Return an empty mapping if the span has none of them.
    """
    values = {key.removeprefix(OPERATION_PREFIX): _finite(attributes[key]) for key in keys if key in attributes}
    return {name: _json(values).decode()} if values else {}


def _events(span: Span, end: int) -> tuple[SpanEvent, ...]:
    """Return the events, with an `exception` event if and only if the span failed; it is added or renamed if necessary.

    This event marks the span, and permanently its whole trace, as failed.
    """
    if span.status != "error":
        return tuple(structs.replace(event, name=RECOVERED) if event.name == EVENT_EXCEPTION else event for event in span.events)
    if any(event.name == EVENT_EXCEPTION for event in span.events):
        return span.events
    outcome = str(span.attributes.get(names.OUTCOME, "error"))
    phase = span.attributes.get(names.ERROR_PHASE)
    attributes = {
        EXCEPTION_TYPE: str(span.attributes.get(names.ERROR_TYPE, outcome)),
        EXCEPTION_MESSAGE: f"{outcome} in {phase}" if phase else outcome,
    }
    return (*span.events, SpanEvent(EVENT_EXCEPTION, end, attributes))


def _links(links: Sequence[SpanLink]) -> dict[str, Any]:
    return {LINK_TRACE: [link.trace_id for link in links], LINK_SPAN: [link.span_id for link in links]} if links else {}


def _safe(name: str) -> str:
    return f"own.{name}" if name.startswith(_LLM) else name


def _finite(value: Any) -> Any:
    """Return NaN and infinity as strings, because Laminar stores them as null; other values unchanged."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
