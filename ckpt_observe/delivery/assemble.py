"""Builds spans from the records of a journal. Everything that can be derived is derived here, not on the host program's thread.

If the setting `CKPT_OBSERVE_GENAI_EVENTS` is on, successful saves and restores also get the span events of OpenTelemetry's draft for the
life cycle of AI agents. The draft has them as log records; here they are on the span.

| operation | event |
| --- | --- |
| `save` | `gen_ai.agent.checkpointed` |
| `save` with `checkpoint.status` `paused` | also `gen_ai.agent.paused` |
| `restore` | `gen_ai.agent.resumed` |
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from ckpt_observe.delivery.derived_attributes import add_derived_attributes
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, genai, spans
from ckpt_observe.semconv.values import PHASES
from ckpt_observe.span import Span, SpanEvent, SpanLink

Ancestors: TypeAlias = tuple[tuple[str, str], ...] | msgspec.UnsetType
"""Id and name of each span above, the root first; UNSET if the chain is not known."""

TraceState: TypeAlias = str | msgspec.UnsetType
"""The W3C `tracestate` of the spans; UNSET if they have none."""

_decode = msgspec.json.Decoder().decode
_PREFIXES: Final = {events.TASK: spans.TASK_PREFIX, events.OPERATION: spans.OPERATION_PREFIX}
_PHASE_SPAN_NAMES: Final = {name: spans.OPERATION_PREFIX + name for name in PHASES}
_EXCEPTION: Final = (spans.EXCEPTION_TYPE, spans.EXCEPTION_MESSAGE)


def assemble(
    payload: bytes, resource: dict[str, Any], attributes: Mapping[str, Any] | None = None, *, genai_events: bool = False
) -> list[Span]:
    """Return the spans of one finished operation: its phases, then the operation. An empty list if the record cannot be understood.

    `attributes` are those of every task and operation of the process. The operation itself has precedence.
    """
    try:
        lines = _decode(payload)
        begin = lines[0] if lines[0][0] == events.BEGIN else next(line for line in lines if line[0] == events.BEGIN)
        # A late thread may have written into a page that belongs to another operation by then.
        lines = [line for line in lines if line[1] == begin[1]]
        end = lines[-1] if lines[-1][0] == events.END else next(line for line in lines if line[0] == events.END)
        phases = [(line[3], 0) for line in lines if line[0] == events.DONE] if len(lines) > 2 else []
        phases += [(phase, end[5]) for phase in end[4]] if len(end) > 4 else []
        ancestors, trace_state = _take_ancestors(begin), _take_trace_state(begin)
        unsampled = begin[7].pop(events.UNSAMPLED, None) if begin[7] else None
        operation = _operation(begin, end, lines, resource, attributes or {}, ancestors, trace_state, genai_events=genai_events)
        above_phases = ancestors if ancestors is UNSET else (*ancestors, (operation.span_id, operation.name))
        phase_spans = _phases(begin, phases, resource, above_phases, trace_state)
        add_derived_attributes(operation, phase_spans)
        assembled = [*phase_spans, operation]
        if unsampled is None:
            return assembled
        if unsampled == events.FAILURES and operation.status == "error":
            return [msgspec.structs.replace(span, exported_failure=True) for span in assembled]
        return [msgspec.structs.replace(span, unsampled=True) for span in assembled]
    except (msgspec.DecodeError, StopIteration, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError):
        return []


def _take_ancestors(begin: list[Any]) -> Ancestors:
    """Remove the ancestors from the attributes and return them: `()` for a root, UNSET if they do not end with the parent.

    In the latter case a span of another library lies between, and the chain is unknown.
    """
    entries = begin[7].pop(events.ANCESTORS, None) if begin[7] else None
    if not begin[6]:
        return ()
    chain = [entry.split(".", 2) for entry in entries or ()]
    if not chain or chain[-1][0] != begin[6]:
        return UNSET
    return tuple((span_id, _PREFIXES.get(kind, "") + name) for span_id, kind, name in chain)


def _take_trace_state(begin: list[Any]) -> TraceState:
    """Remove the `tracestate` from the attributes and return it; UNSET if there is none."""
    packed = begin[7].pop(events.TRACE_STATE, None) if begin[7] else None
    return events.unpack_trace_state(packed) or UNSET if packed else UNSET


def _operation(
    begin: list[Any],
    end: list[Any],
    lines: list[list[Any]],
    resource: dict[str, Any],
    process_attributes: Mapping[str, Any],
    ancestors: Ancestors,
    trace_state: TraceState,
    *,
    genai_events: bool,
) -> Span:
    _, span_id, start, kind, name, trace_id, parent, attributes, shared = begin
    stop = end[2]
    _require(str, span_id, name, trace_id, parent)
    _require(int, start, stop)
    is_task = kind == events.TASK
    defaults = {names.OUTCOME: "ok"} if is_task else {names.OPERATION: name, names.OUTCOME: "ok"}
    attributes = _without_none({**defaults, **process_attributes, **(shared or {}), **(attributes or {}), **(end[3] or {})})
    has_details = len(lines) > 2  # besides begin and end
    span_events = sorted([_event(line) for line in lines if line[0] == events.EVENT], key=_time_of) if has_details else []
    if genai_events:
        span_events += lifecycle_events(attributes, stop)
    return Span(
        trace_id,
        span_id,
        parent,
        (spans.TASK_PREFIX if is_task else spans.OPERATION_PREFIX) + name,
        start,
        stop,
        _status(attributes),
        attributes,
        tuple(span_events),
        tuple([_link(line) for line in lines if line[0] == events.LINK]) if has_details else (),
        resource,
        ancestors,
        trace_state,
    )


def _require(kind: type, *values: Any) -> None:
    """Raise TypeError if a value of a record has another type, because every exporter relies on the types of a span."""
    for value in values:
        if type(value) is not kind:
            raise TypeError(f"a field of the record is not a {kind.__name__}")


def _event(line: list[Any]) -> SpanEvent:
    _require(str, line[3])
    _require(int, line[2])
    return SpanEvent(line[3], line[2], _without_none(line[4]))


def _link(line: list[Any]) -> SpanLink:
    _require(str, line[3], line[4])
    return SpanLink(line[3], line[4], _without_none(line[5]))


_time_of = attrgetter("time_unix_nano")


def _phases(
    begin: list[Any], phases: list[tuple[Any, int]], resource: dict[str, Any], ancestors: Ancestors, trace_state: TraceState
) -> list[Span]:
    """Return the span of each phase. `phases` has each one with the offset to add to its times. `ancestors` ends with the operation."""
    operation, trace_id = begin[1], begin[5]
    operation_number = int(operation, 16)
    nested = [phase for phase, _ in phases if phase[2]]
    by_number = {phase[1]: phase for phase, _ in phases} if nested else {}
    phase_spans = []
    for (name, number, parent, start, stop, details), offset in phases:
        if type(name) is not str or type(start) is not int or type(stop) is not int:
            raise TypeError("a field of a phase has another type")
        attributes: dict[str, Any] = {names.PHASE: name, names.OUTCOME: "ok"}
        status: Literal["ok", "error"] = "ok"
        span_events: tuple[SpanEvent, ...] = ()
        if type(details) is list:
            if details[0] is not None:
                attributes[names.PHASE_BYTES_IN] = details[0]
            if details[1] is not None:
                attributes[names.PHASE_BYTES_OUT] = details[1]
        elif details:
            attributes = _without_none({**attributes, **details})
            status = _status(attributes)
            exception: dict[str, Any] = {key: attributes.pop(key) for key in _EXCEPTION if key in attributes}
            span_events = (SpanEvent(spans.EVENT_EXCEPTION, stop + offset, exception),) if exception else ()
        phase_spans.append(
            Span(
                trace_id,
                events.derive_span_id(operation_number, number),
                _phase_parent(operation, parent) if parent else operation,
                _PHASE_SPAN_NAMES.get(name) or spans.OPERATION_PREFIX + name,
                start + offset,
                stop + offset,
                status,
                attributes,
                span_events,
                (),
                resource,
                _nested_ancestors(ancestors, operation, parent, by_number) if parent else ancestors,
                trace_state,
            )
        )
    return phase_spans


def _phase_parent(operation: str, parent: int | str) -> str:
    """Return the span id of the outer phase, which is given by its number, or of a span that is not ours."""
    return parent if isinstance(parent, str) else events.phase_span_id(operation, parent)


def _nested_ancestors(ancestors: Ancestors, operation: str, parent: int | str, by_number: dict[int, list[Any]]) -> Ancestors:
    """Return the ancestors of a phase inside another phase. UNSET if a span of another library lies between, or the record is damaged."""
    if not parent:
        return ancestors
    phase = by_number.get(parent) if isinstance(parent, int) else None
    if phase and isinstance(phase[2], int) and phase[2] >= phase[1]:  # an outer phase has a lower number: this record is damaged
        return UNSET
    above = _nested_ancestors(ancestors, operation, phase[2], by_number) if phase else UNSET
    if phase is None or above is UNSET:
        return UNSET
    return (*above, (events.phase_span_id(operation, phase[1]), spans.OPERATION_PREFIX + phase[0]))


def _without_none(attributes: dict[str, Any] | None) -> dict[str, Any]:
    if not attributes:
        return {}
    if None in attributes.values():
        return {name: value for name, value in attributes.items() if value is not None}
    return attributes


def _status(attributes: dict[str, Any]) -> Literal["ok", "error"]:
    return "error" if attributes.get(names.OUTCOME) in ("error", "interrupted") else "ok"


def lifecycle_events(attributes: Mapping[str, Any], end_unix_nano: int) -> list[SpanEvent]:
    """Return the GenAI events of an operation with these attributes. An empty list unless it is a successful save or restore."""
    if attributes.get(names.OUTCOME) != "ok":
        return []
    execution = {genai.EXECUTION_ID: attributes.get(names.TASK_ID)}
    checkpoint = attributes.get(names.ID)
    operation = attributes.get(names.OPERATION)
    rows: list[tuple[str, dict[str, Any]]] = []
    if operation == "save":
        rows.append((genai.CHECKPOINTED, {**execution, genai.CHECKPOINT_ID: checkpoint}))
        if attributes.get(names.STATUS) == genai.PAUSED_STATUS:
            rows.append((genai.PAUSED, execution))
    elif operation == "restore":
        source = {genai.RESUMED_FROM_TYPE: genai.FROM_CHECKPOINT, genai.RESUMED_FROM_ID: checkpoint}
        rows.append((genai.RESUMED, {**execution, **source}))
    return [SpanEvent(name, end_unix_nano, _without_none(details)) for name, details in rows]
