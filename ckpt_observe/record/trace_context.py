"""The trace context of an operation: its ids, its parent, and whether its trace is recorded.

The parent is the current OpenTelemetry span, else Laminar's, else what `running_tasks` finds, else what the environment names.

Ids come from a generator of our own, which is seeded by the system: a training run that seeds `random` must not get other numbers because
of us, nor make us repeat ids. Asking the system each time would give up the GIL, for tens of milliseconds in a program with busy threads.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from uuid import UUID

import msgspec
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, Context, create_key
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext

from ckpt_observe.record import redact, trace_state
from ckpt_observe.record.recorder import recorder
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import laminar
from ckpt_observe.semconv.events import ancestor
from ckpt_observe.support import forks

if TYPE_CHECKING:
    from random import Random

SPAN_KEY: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))
"""The key of the current span in OpenTelemetry's context. Taken from its public function, because its name is private."""
TASK_KEY: Final = create_key("ckpt_observe-task")
_PARENT_KEY: Final = create_key("ckpt_observe-parent")
"""The key of a `_ParentOverride`."""
SUPPRESSED: Final = _SUPPRESS_INSTRUMENTATION_KEY
"""Set in the context by OpenTelemetry's `suppress_instrumentation()`: nothing is recorded. Older code sets SUPPRESSED_BY_NAME."""
SUPPRESSED_BY_NAME: Final = "suppress_instrumentation"

_runtime: Final[Any] = otel_context._RUNTIME_CONTEXT
_variable: Final[Any] = _runtime._current_context if type(_runtime) is ContextVarsRuntimeContext else None
"""The variable that holds OpenTelemetry's context, unless OTEL_PYTHON_CONTEXT selects another implementation. OpenTelemetry's functions
for it call two more Python functions each."""
get_current: Final[Callable[[], Context]] = otel_context.get_current if _variable is None else _variable.get
attach: Final[Callable[[Context], Any]] = otel_context.attach if _variable is None else _variable.set
detach: Final[Callable[[Any], None]] = _runtime.detach if _variable is None else _variable.reset
"""Do what OpenTelemetry's functions do. `detach` raises errors, such as ValueError if the token was created in another context;
OpenTelemetry's catches them, and also exceptions of the host program's signal handlers."""

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_IDS_PER_REFILL: Final = 512
_ids: list[str] = []
_generator: Random | None = None


def _random_bytes(count: int) -> bytes:
    global _generator
    if _generator is None:
        from random import Random  # noqa: PLC0415 - with the first operation: it imports hashlib (3 ms)

        _generator = Random(int.from_bytes(os.urandom(32)))  # noqa: S311 - ids need not be secret
    return _generator.randbytes(count)


def _start_over() -> None:
    global _generator
    _ids.clear()
    _generator = None


forks.run_in_child(_start_over)


def new_span_id() -> str:
    """Return 16 random hex digits. Safe in threads and signal handlers, because `list.pop` is atomic."""
    try:
        return _ids.pop()
    except IndexError:
        ids = _random_bytes(8 * _IDS_PER_REFILL).hex(" ", 8).split()
        new_id = ids.pop()
        _ids.extend(ids)
        return new_id


def new_trace_id() -> str:
    """Return 32 random hex digits."""
    try:
        return _ids.pop() + _ids.pop()
    except IndexError:
        return new_span_id() + new_span_id()


class Parent(NamedTuple):
    """Trace and span id of a parent, and whether it is sampled. Path and attributes are known only for spans of Laminar."""

    trace: str
    span: str
    sampled: bool
    path: tuple[str, ...] | None = None
    """`events.ancestor` of each span from the root down to the parent itself. None: not known."""
    attributes: Mapping[str, Any] = {}
    """Session and user of the parent, which operations inherit."""
    trace_state: str = ""
    """Its W3C `tracestate`, which operations keep."""


_UNSAMPLED_PARENT: Final = Parent("f" * 32, "f" * 16, sampled=False)
"""Stands for the root of any trace of ours that is not recorded. Samplers by ratio reject this id too."""


class HasTraceId(Protocol):
    """An operation whose trace is not recorded."""

    trace_id: str


class UnsampledSpan(trace.NonRecordingSpan):
    """The current span in a trace of ours that is not recorded at all: our sampler rejected it, and there are no metrics to count it.

    Whatever starts inside it sees that, and is not recorded either.
    """

    def __init__(self, operation: HasTraceId) -> None:
        self.operation = operation
        self._span_context: trace.SpanContext | None = None
        """Built on first use: it is expensive and rarely needed."""

    def get_span_context(self) -> trace.SpanContext:
        """Return ids that can be propagated to other processes, with the flag that the trace is not sampled."""
        if self._span_context is None:
            trace_id, span_id = int(self.operation.trace_id, 16), int(new_span_id(), 16)
            flags = trace.TraceFlags(trace.TraceFlags.DEFAULT)
            self._span_context = trace.SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags)
        return self._span_context


class CarriedSpan(trace.NonRecordingSpan):
    """A span of another process, in the context that this process or a function was handed over with."""

    def __init__(self, parent: Parent) -> None:
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if parent.sampled else trace.TraceFlags.DEFAULT)
        state = trace_state.build(parent.trace_state)
        super().__init__(trace.SpanContext(int(parent.trace, 16), int(parent.span, 16), True, flags, state))
        self.parent = parent


class _ParentOverride(NamedTuple):
    """Gives operations another parent than the current span, which is the host program's: its own spans must not get that parent."""

    current: Any
    """The current span when the override was made. If another span is current, it began later, and it is the parent."""
    parent: Any


def with_span(context: Context, span: trace.Span) -> Context:
    """Return the context with another current span."""
    return Context({**context, SPAN_KEY: span} if context else {SPAN_KEY: span})


def with_parent(context: Context, parent: Any, task: Any) -> Context:
    """Return a context in which operations have this span as their parent and belong to this task. The current span stays the same."""
    return Context({**context, _PARENT_KEY: _ParentOverride(context.get(SPAN_KEY), parent), TASK_KEY: task})


def parent_span(context: Context) -> Any:
    """Return the span that is the parent of operations in this context: the current one, or that of `with_parent`; None without one."""
    current = context.get(SPAN_KEY)
    override: Any = context.get(_PARENT_KEY)
    return current if override is None or override.current is not current else override.parent


def may_record() -> bool:
    """Return False if an operation that starts here would certainly not be recorded. `Operation.begin` has the final say.

    For instrumentors, before they inspect a call: in a trace that is not recorded, they do no further work.
    """
    if not recorder.on:
        return False
    context = get_current()
    if not context:
        return True
    enclosing = parent_span(context)
    if type(enclosing) is UnsampledSpan:
        return False
    if type(enclosing) is not trace.NonRecordingSpan or recorder.samples is not None or recorder.unsampled:
        return True
    span_context = enclosing.get_span_context()
    return span_context.trace_flags.sampled or not span_context.is_valid


def find_parent(current: Any, process_parent: Parent | None = None) -> Parent | None:
    """Return the parent of an operation that starts here, or None for a new trace.

    `current` is OpenTelemetry's current span, if any, and `process_parent` what `find_process_parent` returned.
    """
    if current is None and "lmnr" not in sys.modules:  # the usual root: nothing to look at
        return process_parent
    if type(current) is UnsampledSpan:
        return _UNSAMPLED_PARENT
    return _parent_from_span(current) or _parent_from_span(_laminar_span()) or process_parent


def find_process_parent(traceparent: str, laminar_context: str, tracestate: str = "") -> Parent | None:
    """Return the span of another process that the variables `TRACEPARENT` and `LMNR_SPAN_CONTEXT` name, or None.

    If both name the same span, Laminar's variable has more to say about it. If they name different ones, `TRACEPARENT` has precedence.
    `tracestate` belongs to `TRACEPARENT`.
    """
    parent, laminar_parent = parse_traceparent(traceparent, tracestate), parse_laminar_context(laminar_context)
    if parent is None or laminar_parent is None:
        return parent or laminar_parent
    return laminar_parent._replace(trace_state=parent.trace_state) if parent[:3] == laminar_parent[:3] else parent


def parse_traceparent(traceparent: str, tracestate: str = "") -> Parent | None:
    """Return the parent that a W3C `traceparent` of version 00 and its `tracestate` describe, or None if it is not valid."""
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    return Parent(match[1], match[2], bool(int(match[3], 16) & 1), trace_state=trace_state.parse_header(tracestate))


class _LaminarContext(msgspec.Struct):
    """`LaminarSpanContext` of Laminar's SDK as JSON, in which Laminar continues a trace in another process. IDs are UUIDs."""

    trace_id: UUID
    span_id: UUID
    span_path: list[str] = []
    span_ids_path: list[str] = []
    user_id: str | None = None
    session_id: str | None = None


def parse_laminar_context(text: str) -> Parent | None:
    """Return the parent that a serialized span context of Laminar describes, or None if it is not valid."""
    try:
        context = msgspec.json.decode(text, type=_LaminarContext)
    except (msgspec.DecodeError, RecursionError):
        return None
    trace_id, span_id = context.trace_id.hex, context.span_id.hex
    if not context.trace_id.int or not context.span_id.int or context.span_id.int >> 64:
        return None
    attributes = {laminar.IDS_PATH: context.span_ids_path, laminar.PATH: context.span_path}
    identity = {names.SESSION_ID: context.session_id, names.USER_ID: context.user_id}
    inherited = redact.attributes({name: value for name, value in identity.items() if value is not None})
    return Parent(trace_id, span_id[16:], sampled=True, path=_path(attributes), attributes=inherited)


def span_id_in_trace(span: Any, trace_id: str) -> str:
    """Return the id of a span if it belongs to that trace, else an empty string."""
    parent = _parent_from_span(span)
    return parent.span if parent is not None and parent.trace == trace_id else ""


def _parent_from_span(span: Any) -> Parent | None:
    if type(span) is CarriedSpan:
        return span.parent
    if not isinstance(span, trace.Span):
        return None
    context = span.get_span_context()
    if not context.is_valid:
        return None
    trace_id, span_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
    if not context.trace_flags.sampled:
        return Parent(trace_id, span_id, sampled=False, trace_state=trace_state.get_header(context))
    attributes = getattr(span, "attributes", None) or {}
    inherited = redact.attributes({name: attributes[source] for name, source in _INHERITED if source in attributes})
    return Parent(trace_id, span_id, True, _path(attributes), inherited, trace_state.get_header(context))


_INHERITED: Final = ((names.SESSION_ID, laminar.SESSION), (names.USER_ID, laminar.USER))


def _path(attributes: Mapping[str, Any]) -> tuple[str, ...] | None:
    ids, path = attributes.get(laminar.IDS_PATH), attributes.get(laminar.PATH)
    if not ids or not path or len(ids) != len(path):
        return None
    return tuple(ancestor(laminar.span_id(each), "", redact.name(name)) for each, name in zip(ids, path, strict=True))


def has_laminar_span() -> bool:
    """Return whether Laminar has a current span here."""
    return _parent_from_span(_laminar_span()) is not None


def _laminar_span() -> Any:
    """Return Laminar's current span. Its context reaches threads that OpenTelemetry's does not.

    Never imports lmnr, which takes 350 ms and 650 modules.
    """
    laminar = getattr(sys.modules.get("lmnr"), "Laminar", None)
    if laminar is None or not laminar.is_initialized():
        return None
    return laminar.get_current_span()
