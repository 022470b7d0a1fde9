"""Records of the journal become spans; what can be worked out is worked out here, not on the host's thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import UNSET

from ckpt_observe.delivery.genai_events import lifecycle
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, spans
from ckpt_observe.span import Event, Link, Span

Ancestors: TypeAlias = tuple[tuple[str, str], ...] | msgspec.UnsetType

_decode = msgspec.json.Decoder().decode
_PREFIXES: Final = {events.TASK: spans.TASK_PREFIX, events.OPERATION: spans.OPERATION_PREFIX}
_EXCEPTION: Final = (spans.EXCEPTION_TYPE, spans.EXCEPTION_MESSAGE)


def assemble(payload: bytes, resource: dict[str, Any]) -> list[Span]:
    """The spans of one finished operation: its phases, then itself. Empty if the record is not one that we know."""
    try:
        lines = _decode(payload)
        begin = next(line for line in lines if line[0] == events.BEGIN)
        mine = [line for line in lines if line[1] == begin[1]]  # a thread that comes too late writes into a page that is another's by then
        end = next(line for line in mine if line[0] == events.END)
        written = [(line[3], 0) for line in mine if line[0] == events.DONE]
        stories = [*written, *((story, end[5]) for story in (end[4] if len(end) > 4 else ()))]
        above = _ancestors(begin)
        own = _operation(begin, end, mine, resource, above)
        return [*_phases(begin, stories, resource, above if above is UNSET else (*above, (own.span_id, own.name))), own]
    except (msgspec.DecodeError, StopIteration, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        return []


def _ancestors(begin: list[Any]) -> Ancestors:
    """Taken out of the attributes. Believed only if it ends with the parent: somebody else's span may have come between."""
    told = begin[7].pop(events.ANCESTORS, None) if begin[7] else None
    if not begin[6]:
        return ()
    chain = [each.split(".", 2) for each in told or ()]
    if not chain or chain[-1][0] != begin[6]:
        return UNSET
    return tuple((span_id, _PREFIXES.get(kind, "") + name) for span_id, kind, name in chain)


def _operation(begin: list[Any], end: list[Any], lines: list[list[Any]], resource: dict[str, Any], ancestors: Ancestors) -> Span:
    _, span_id, start, kind, name, trace_id, parent, given, known = begin
    stop = end[2]
    task = kind == events.TASK
    said = {**(known or {}), **(given or {}), **(end[3] or {})}
    attributes = _present({**({} if task else {names.OPERATION: name}), names.OUTCOME: "ok", **said})
    _derive(attributes, (stop - start) / 1e9)
    said_then = sorted((Event(line[3], line[2], _present(line[4])) for line in lines if line[0] == events.EVENT), key=_moment)
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_span_id=parent,
        name=(spans.TASK_PREFIX if task else spans.OPERATION_PREFIX) + name,
        start_unix_nano=start,
        end_unix_nano=stop,
        status=_status(attributes),
        attributes=attributes,
        events=(*said_then, *lifecycle.events(attributes, stop)),
        links=tuple(Link(line[3], line[4], _present(line[5])) for line in lines if line[0] == events.LINK),
        resource=resource,
        ancestors=ancestors,
    )


def _moment(event: Event) -> int:
    return event.time_unix_nano


def _phases(begin: list[Any], stories: list[tuple[Any, int]], resource: dict[str, Any], ancestors: Ancestors) -> Iterator[Span]:
    operation, trace_id = begin[1], begin[5]
    nested = any(story[2] for story, _ in stories)
    within = {story[1]: story for story, _ in stories} if nested else {}
    for (name, number, parent, start, stop, given), offset in stories:
        sizes = {names.PHASE_BYTES_IN: given[0], names.PHASE_BYTES_OUT: given[1]} if isinstance(given, list) else given
        attributes = _present({names.PHASE: name, names.OUTCOME: "ok", **(sizes or {})})
        told: dict[str, Any] = {key: attributes.pop(key) for key in _EXCEPTION if key in attributes}
        yield Span(
            trace_id=trace_id,
            span_id=events.phase_span_id(operation, number),
            parent_span_id=parent if isinstance(parent, str) else events.phase_span_id(operation, parent) if parent else operation,
            name=spans.OPERATION_PREFIX + name,
            start_unix_nano=start + offset,
            end_unix_nano=stop + offset,
            status=_status(attributes),
            attributes=attributes,
            events=(Event(spans.EVENT_EXCEPTION, stop + offset, told),) if told else (),
            resource=resource,
            ancestors=ancestors if not parent else _beneath(ancestors, operation, parent, within),
        )


def _beneath(ancestors: Ancestors, operation: str, number: int | str, within: dict[int, list[Any]]) -> Ancestors:
    """The chain above a phase in a phase; not known above one that somebody else's span came between."""
    if not number:
        return ancestors
    row = within.get(number) if isinstance(number, int) else None
    if row and isinstance(row[2], int) and row[2] >= row[1]:  # an outer phase has a lower number; this record is damaged
        return UNSET
    above = _beneath(ancestors, operation, row[2], within) if row else UNSET
    return UNSET if row is None or above is UNSET else (*above, (events.phase_span_id(operation, row[1]), spans.OPERATION_PREFIX + row[0]))


def _present(attributes: dict[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None} if attributes else {}


def _status(attributes: dict[str, Any]) -> Any:
    return "error" if attributes.get(names.OUTCOME) in ("error", "interrupted") else "ok"


def _derive(attributes: dict[str, Any], seconds: float) -> None:
    serialized, stored = attributes.get(names.SIZE_SERIALIZED), attributes.get(names.SIZE_STORED)
    if not isinstance(stored, int | float):  # whatever somebody's own code wrote there: the operation is not lost by it
        return
    if isinstance(serialized, int | float) and serialized and stored and names.RATIO not in attributes:
        attributes[names.RATIO] = round(serialized / stored, 3)
    if stored and seconds > 0 and names.THROUGHPUT not in attributes:
        attributes[names.THROUGHPUT] = round(stored / seconds, 1)
