"""What queries return. All types are immutable and convert to JSON; `json_schema` describes them."""

from __future__ import annotations

import time
from typing import Any, Final, Literal

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.spans import TASK_PREFIX
from ckpt_observe.span import Span, SpanEvent, SpanLink
from ckpt_observe.tracestore import TraceSummary
from ckpt_observe.tracestore.operation_filter import SERVICE, stored_bytes

RUNNING: Final = "running"
"""Outcome of an operation or phase that has not ended."""
_PID: Final = "process.pid"


class ObservedPhase(msgspec.Struct, frozen=True, kw_only=True):
    """A phase of an operation."""

    name: str
    """Such as `write`."""
    span_id: str
    parent_span_id: str
    """The operation, an enclosing phase, or a span of another library."""
    start_unix_nano: int
    end_unix_nano: int | None
    """None while it is running."""
    outcome: str
    attributes: dict[str, Any] = {}
    events: tuple[SpanEvent, ...] = ()


class ObservedOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation or task with its phases, finished or running; or a span of another library that is in the store."""

    kind: Literal["operation", "task", "span"]
    name: str
    """`save`, `load`, ...; the name of the task; the name of the span."""
    trace_id: str
    span_id: str
    parent_span_id: str
    """Empty for the root of a trace."""
    start_unix_nano: int
    end_unix_nano: int | None
    """None while it is running."""
    outcome: str
    """One of the outcomes of docs/semconv.md, or `running`."""
    attributes: dict[str, Any] = {}
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()
    resource: dict[str, Any] = {}
    phases: tuple[ObservedPhase, ...] = ()
    """By start."""

    @property
    def is_running(self) -> bool:
        return self.end_unix_nano is None

    @property
    def phase(self) -> str | None:
        """The phase that is running now, the innermost if several are; or the one in which the operation failed or its process died."""
        if not self.is_running:
            return _text(self.attributes.get(names.ERROR_PHASE))
        return next((phase.name for phase in reversed(self.phases) if phase.end_unix_nano is None), None)

    @property
    def task_name(self) -> str | None:
        return _text(self.attributes.get(names.TASK_NAME))

    @property
    def task_title(self) -> str:
        """What commands and pages call its task: the name of the task; without a task, the program; without both, an empty string."""
        return self.task_name or self.service or ""

    @property
    def task_id(self) -> str | None:
        return _text(self.attributes.get(names.TASK_ID))

    @property
    def system(self) -> str | None:
        """The checkpoint library, such as `langgraph`."""
        return _text(self.attributes.get(names.SYSTEM))

    @property
    def checkpoint_id(self) -> str | None:
        return _text(self.attributes.get(names.ID))

    @property
    def service(self) -> str | None:
        return _text(self.resource.get(SERVICE))

    @property
    def pid(self) -> int | None:
        """The process that ran the operation."""
        pid = self.resource.get(_PID)
        return pid if isinstance(pid, int) else None

    @property
    def stored_bytes(self) -> int | None:
        """Size in the store; if that is unknown, the serialized size."""
        return stored_bytes(self.attributes)

    def seconds(self, now_unix_nano: int | None = None) -> float:
        """Return the duration, until now if it is running."""
        end = self.end_unix_nano
        if end is None:
            end = time.time_ns() if now_unix_nano is None else now_unix_nano
        return max(0, end - self.start_unix_nano) / 1e9


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """One trace: its operations, tasks and other spans, parents before children and siblings by start, running ones included."""

    summary: TraceSummary
    operations: tuple[ObservedOperation, ...]


class Removal(msgspec.Struct, frozen=True):
    """What the limits of the store have removed so far, for one reason."""

    reason: str
    """`age` or `size`."""
    traces: int
    operations: int
    last_unix_nano: int


class StoreTotals(msgspec.Struct, frozen=True):
    """How much the store contains."""

    traces: int
    operations: int
    removed: tuple[Removal, ...] = ()


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """What happened since a cursor, and what is running now."""

    cursor: str
    """Pass it to the next call."""
    finished: tuple[ObservedOperation, ...]
    """Operations, tasks and other spans that arrived in the store, in the order of their arrival."""
    running: tuple[ObservedOperation, ...]
    """By start."""
    has_more: bool = False
    """Whether more has finished than one answer holds. Ask again at once."""


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema of one of these types, such as `Trace` or `list[TraceSummary]`."""
    return msgspec.json.schema(kind)


def from_spans(operation: Span, phases: list[Span]) -> ObservedOperation:
    """Return an operation, task or other span with its phases."""
    attributes = operation.attributes
    kind: Literal["operation", "task", "span"] = "span"
    name = operation.name
    if names.OPERATION in attributes:
        kind, name = "operation", str(attributes[names.OPERATION])
    elif name.startswith(TASK_PREFIX):
        kind, name = "task", name.removeprefix(TASK_PREFIX)
    outcome = _outcome(operation)
    return ObservedOperation(
        kind=kind,
        name=name,
        trace_id=operation.trace_id,
        span_id=operation.span_id,
        parent_span_id=operation.parent_span_id,
        start_unix_nano=operation.start_unix_nano,
        end_unix_nano=None if outcome == RUNNING else operation.end_unix_nano,
        outcome=outcome,
        attributes=attributes,
        events=operation.events,
        links=operation.links,
        resource=operation.resource,
        phases=tuple(map(_phase, sorted(phases, key=lambda phase: (phase.start_unix_nano, -phase.end_unix_nano)))),
    )


def _phase(span: Span) -> ObservedPhase:
    outcome = _outcome(span)
    return ObservedPhase(
        name=str(span.attributes.get(names.PHASE, span.name)),
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        start_unix_nano=span.start_unix_nano,
        end_unix_nano=None if outcome == RUNNING else span.end_unix_nano,
        outcome=outcome,
        attributes=span.attributes,
        events=span.events,
    )


def _outcome(span: Span) -> str:
    return str(span.attributes.get(names.OUTCOME) or ("error" if span.status == "error" else "ok"))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
