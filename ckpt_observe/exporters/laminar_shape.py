"""Changes spans to a form that Laminar displays well. Docstrings and comments say how it showed unchanged spans (June 2026)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import UNSET, structs

from ckpt_observe.exporters.input_output import describe_outcome, finite, is_task, span_input, span_output, summary, to_json
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import laminar
from ckpt_observe.semconv.spans import EVENT_EXCEPTION, EXCEPTION_MESSAGE, EXCEPTION_TYPE, OPERATION_PREFIX, TASK_PREFIX
from ckpt_observe.span import Span, SpanEvent, SpanLink

RECOVERED: Final = "recovered exception"
LINK_TRACE: Final = "link.trace_id"
LINK_SPAN: Final = "link.span_id"

_METADATA: Final = (names.TASK_NAME, names.TASK_ID, "service.name")
_LLM: Final = ("gen_ai.", "ai.toolCall.", "lmnr.")
"""Prefixes of attributes that would turn the span into a model call or control Laminar. They get the prefix `own.`."""


def shape(span: Span, root_name: str = "") -> Span:
    """Return the span in the form that is sent to Laminar. Equal spans give equal results.

    `root_name` is the name of the root of its trace, for a span whose ancestors are unknown; empty: not known either.
    """
    end = max(span.end_unix_nano, span.start_unix_nano)  # a span that ends before it starts is shown as "No spans found"
    attributes = {
        **span.resource,  # Laminar does not store the resource and the links, so they become attributes
        **_links(span.links),
        **{_safe(name): finite(value) for name, value in span.attributes.items()},  # not finite: Laminar would store null
        **_association(span),
        **_path(span, root_name),
        **_input_and_output(span),
    }
    if names.OPERATION in span.attributes and not _is_upkeep(span):
        attributes[laminar.SPAN_TYPE] = "TOOL"  # the default view omits DEFAULT spans; on a task, TOOL would hide the tree
    return structs.replace(span, end_unix_nano=end, attributes=attributes, events=_events(span, end))


def _is_upkeep(span: Span) -> bool:
    """Return whether old checkpoints were removed after or within a save: a line for it after every save would hide the others.

    A failure is worth a line. The ancestors are not always known, such as those of a prune in the phase `retain` of the reference core.
    """
    if span.status == "error":
        return False
    is_inside = span.ancestors is not UNSET and any(name.startswith(OPERATION_PREFIX) for _, name in span.ancestors)
    return span.attributes.get(names.RETENTION) is True or (is_inside and span.attributes.get(names.OPERATION) == "prune")


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


def _input_and_output(span: Span) -> dict[str, str]:
    """Return input and output as JSON strings, which is the only type that Laminar accepts here. No attribute without values.

    The summary of an operation is in its input, where the page looks for the line in the transcript. That of a task is in its output.
    """
    in_input, in_output = ({}, summary(span)) if is_task(span) else (summary(span), {})
    values = {laminar.INPUT: {**in_input, **span_input(span)}, laminar.OUTPUT: {**in_output, **span_output(span), **_source(span)}}
    return {name: to_json(value) for name, value in values.items() if value}


def _source(span: Span) -> dict[str, Any]:
    """Return step, trace and span of the save that a load or restore came from, with ids as Laminar writes them: the page finds them."""
    sources = {"source.trace": (names.SOURCE_TRACE, laminar.trace_uuid), "source.span": (names.SOURCE_SPAN, laminar.span_uuid)}
    ids = {key: uuid(str(span.attributes[name])) for key, (name, uuid) in sources.items() if name in span.attributes}
    is_read = span.attributes.get(names.OPERATION) in ("load", "restore")
    return {"source.step": finite(span.attributes[names.STEP]), **ids} if is_read and names.STEP in span.attributes else ids


def _events(span: Span, end: int) -> tuple[SpanEvent, ...]:
    """Return the events, with an `exception` event if and only if the span failed; it is added or renamed if necessary.

    This event marks the span, and permanently its whole trace, as failed.
    """
    if span.status != "error":
        return tuple(structs.replace(event, name=RECOVERED) if event.name == EVENT_EXCEPTION else event for event in span.events)
    if any(event.name == EVENT_EXCEPTION for event in span.events):
        return span.events
    outcome = str(span.attributes.get(names.OUTCOME, "error"))
    attributes = {EXCEPTION_TYPE: str(span.attributes.get(names.ERROR_TYPE, outcome)), EXCEPTION_MESSAGE: describe_outcome(span)}
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
