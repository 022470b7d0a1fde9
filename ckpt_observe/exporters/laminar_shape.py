"""Changes spans to a form that Laminar displays well. Docstrings and comments say how it showed unchanged spans (June 2026)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, structs

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import laminar
from ckpt_observe.semconv.spans import EVENT_EXCEPTION, EXCEPTION_MESSAGE, EXCEPTION_TYPE, OPERATION_PREFIX, TASK_PREFIX
from ckpt_observe.span import Span, SpanEvent, SpanLink
from ckpt_observe.support.formatting import format_duration, format_size

RECOVERED: Final = "recovered exception"
LINK_TRACE: Final = "link.trace_id"
LINK_SPAN: Final = "link.span_id"

_INPUT: Final = (names.ID, names.STEP, names.SYSTEM, names.STORE, names.LOCATION, names.FORMAT, names.CODEC, names.PHASE_BYTES_IN)
_OUTPUT: Final = (
    names.OUTCOME, names.SIZE_SERIALIZED, names.SIZE_STORED, names.RATIO, names.COUNT, names.PHASE_BYTES_OUT,
    names.SOURCE_AGE, names.STEPS_SINCE, names.ERROR_CLASS, names.ERROR_CODE, names.ERROR_PHASE,
)  # fmt: skip
_METADATA: Final = (names.TASK_NAME, names.TASK_ID, "service.name")
_LLM: Final = ("gen_ai.", "ai.toolCall.", "lmnr.")
"""Prefixes of attributes that would turn the span into a model call or control Laminar. They get the prefix `own.`."""
_MAX_PREVIEW: Final = 200
"""Characters of an error in a preview; the whole message is in the `exception` event."""
_json = msgspec.json.Encoder().encode


def shape(span: Span, root_name: str = "") -> Span:
    """Return the span in the form that is sent to Laminar. Equal spans give equal results.

    `root_name` is the name of the root of its trace, for a span whose ancestors are unknown; empty: not known either.
    """
    end = max(span.end_unix_nano, span.start_unix_nano)  # a span that ends before it starts is shown as "No spans found"
    attributes = {
        **span.resource,  # Laminar does not store the resource and the links, so they become attributes
        **_links(span.links),
        **{_safe(name): _finite(value) for name, value in span.attributes.items()},
        **_association(span),
        **_path(span, root_name),
        **_json_attribute(laminar.INPUT, {**_preview(span), **_select(_INPUT, span.attributes)}),
        **_json_attribute(laminar.OUTPUT, {**_select(_OUTPUT, span.attributes), **_source(span)}),
    }
    if names.OPERATION in span.attributes and not _is_upkeep(span):
        attributes[laminar.SPAN_TYPE] = "TOOL"  # the default view omits DEFAULT spans; on a task, TOOL would hide the tree
    return structs.replace(span, end_unix_nano=end, attributes=attributes, events=_events(span, end))


def _is_upkeep(span: Span) -> bool:
    """Return whether a save pruned old checkpoints: a line for it after every save would hide the others."""
    is_inside = span.ancestors is not UNSET and any(name.startswith(OPERATION_PREFIX) for _, name in span.ancestors)
    return is_inside and span.attributes.get(names.OPERATION) == "prune"


def _path(span: Span, root_name: str) -> dict[str, Any]:
    """Return the attributes for the path from the root to the span.

    Without a path, the children of a running task are hidden, and Laminar renames the trace to the span that came last. A partial path of
    ids would create a false root: if the ancestors are unknown, there are only names, the first of which is the name of the trace.
    """
    if span.ancestors is UNSET:
        root_name = root_name or (TASK_PREFIX + str(span.attributes[names.TASK_NAME]) if names.TASK_NAME in span.attributes else "")
        return {laminar.PATH: [root_name, span.name]} if root_name else {}
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


def _select(keys: Sequence[str], attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(OPERATION_PREFIX): _finite(attributes[key]) for key in keys if key in attributes}


def _json_attribute(name: str, values: dict[str, Any]) -> dict[str, str]:
    """Return the values as an attribute: a JSON string, which is the only type that Laminar accepts here. No attribute without values."""
    return {name: _json(values).decode()} if values else {}


def _preview(span: Span) -> dict[str, str]:
    """Return the line of an operation in the transcript, such as `step 3 · 12.2 kB → 973 B`: the page shows the key `summary`."""
    attributes = span.attributes
    if names.OPERATION not in attributes:
        return {}
    parts = [f"step {attributes[names.STEP]}"] if names.STEP in attributes else []
    if span.status == "error":
        parts.append(_describe_error(span))
    else:
        sizes = [attributes.get(name) for name in (names.SIZE_SERIALIZED, names.SIZE_STORED)]
        texts = dict.fromkeys(format_size(size) for size in sizes if isinstance(size, int))
        parts += [" → ".join(texts)] if texts else []
        age = attributes.get(names.SOURCE_AGE)
        parts += [f"saved {format_duration(age)} before"] if isinstance(age, int | float) and math.isfinite(age) else []
    return {"summary": " · ".join(parts)} if parts else {}


def _describe_error(span: Span) -> str:
    """Return the exception in one line; without one, the outcome."""
    for event in span.events:
        if event.name == EVENT_EXCEPTION:
            message = " ".join(str(event.attributes.get(EXCEPTION_MESSAGE, "")).split())
            return f"{event.attributes.get(EXCEPTION_TYPE, '')}: {message}"[:_MAX_PREVIEW]
    return _outcome(span)


def _outcome(span: Span) -> str:
    outcome = str(span.attributes.get(names.OUTCOME, "error"))
    phase = span.attributes.get(names.ERROR_PHASE)
    return f"{outcome} in {phase}" if phase else outcome


def _source(span: Span) -> dict[str, str]:
    """Return trace and span of the save that a load or restore came from, as Laminar writes ids: the page finds them by search."""
    sources = {"source.trace": (names.SOURCE_TRACE, laminar.trace_uuid), "source.span": (names.SOURCE_SPAN, laminar.span_uuid)}
    return {key: uuid(str(span.attributes[name])) for key, (name, uuid) in sources.items() if name in span.attributes}


def _events(span: Span, end: int) -> tuple[SpanEvent, ...]:
    """Return the events, with an `exception` event if and only if the span failed; it is added or renamed if necessary.

    This event marks the span, and permanently its whole trace, as failed.
    """
    if span.status != "error":
        return tuple(structs.replace(event, name=RECOVERED) if event.name == EVENT_EXCEPTION else event for event in span.events)
    if any(event.name == EVENT_EXCEPTION for event in span.events):
        return span.events
    outcome = str(span.attributes.get(names.OUTCOME, "error"))
    attributes = {EXCEPTION_TYPE: str(span.attributes.get(names.ERROR_TYPE, outcome)), EXCEPTION_MESSAGE: _outcome(span)}
    return (*span.events, SpanEvent(EVENT_EXCEPTION, end, attributes))


def _links(links: Sequence[SpanLink]) -> dict[str, Any]:
    """Return the targets of the links as Laminar writes ids; with hex digits, its pages are not found."""
    if not links:
        return {}
    return {
        LINK_TRACE: [laminar.trace_uuid(link.trace_id) for link in links],
        LINK_SPAN: [laminar.span_uuid(link.span_id) for link in links],
    }


def _safe(name: str) -> str:
    return f"own.{name}" if name.startswith(_LLM) else name


def _finite(value: Any) -> Any:
    """Return NaN and infinity as strings, because Laminar stores them as null; other values unchanged."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
