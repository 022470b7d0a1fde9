"""Operations: they begin, become current, end exactly once, and write each step to a page when it happens.

While it runs, an operation *is* the current OpenTelemetry span, and stands for its running phase: spans of other instrumentations become
children of that phase, and `trace.get_current_span().set_attribute(...)` in the host program sets an attribute of it. Nothing here raises
into the host program: see `guard`.

This is the hot path. The usual phase is two 64-bit words in a page of shared memory and one tuple in a context variable of ours. Only the
operation is attached to OpenTelemetry's context. Its begin and its end are JSON lines in the page, as are events and unusual phases.
"""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Mapping
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import Raw
from opentelemetry.context import Context

from ckpt_observe.record import redact, resource_usage, running_tasks
from ckpt_observe.record.encoding import encode_line
from ckpt_observe.record.error_lookup import ErrorCodes, is_caused_by
from ckpt_observe.record.failures import classify, exception_attributes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.otel_span import OtelSpan
from ckpt_observe.record.recorder import Page, recorder
from ckpt_observe.record.redact import Redacted, is_clean
from ckpt_observe.record.running_tasks import candidates
from ckpt_observe.record.trace_context import (
    SPAN_KEY,
    SUPPRESSED,
    SUPPRESSED_BY_NAME,
    TASK_KEY,
    UnsampledSpan,
    attach,
    detach,
    find_parent,
    get_current,
    new_span_id,
    new_trace_id,
    parent_span,
    with_parent,
    with_span,
)
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, spans
from ckpt_observe.semconv.events import phase_span_id
from ckpt_observe.support.host_exceptions import raise_host_exception

if TYPE_CHECKING:
    from ckpt_observe.record.phase import Phase

_monotonic, _wall, _thread, _count = time.perf_counter_ns, time.time_ns, threading.get_ident, itertools.count
_LEAST_DURATION: Final = resource_usage.LEAST_OPERATION
_short_operations: set[str] = set()
"""Names of operations whose last run took less than 0.5 ms: reading their resource usage is not worth two system calls."""
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = {}
_operation_types: set[type] = set()
"""Operation and its subclasses. Checked whenever an operation begins; `isinstance` with an abstract class would cost more."""

current_position: ContextVar[tuple[Operation, int, Phase | None] | None] = ContextVar("ckpt_observe-position", default=None)
"""The operation that runs in this context, the number of its phase (0: none), and that phase if it is a `Phase` and not a patched call.

None outside an operation."""


class Operation(OtelSpan):
    """One checkpoint operation. Use it in a `with`, or call `begin` and `finish`."""

    __slots__ = (
        "_attributes", "_context_token", "_counting_task", "_encoded", "_last_usage", "_position_token", "_usage",
        "ancestors", "begin_attributes", "clock_offset", "inherited_attributes", "name", "open_page", "page", "phase_failure",
        "phase_numbers", "phases", "running_phase", "sampled", "span_id", "start", "thread", "trace_id", "trace_state",
    )  # fmt: skip

    kind = events.OPERATION
    records_message = True
    """Whether the message of an exception is recorded, and not only its type."""
    page: Page
    thread: int
    start: int
    clock_offset: int
    """Add it to a time of the monotonic clock to get Unix time."""

    def __init__(self, name: str, attributes: Mapping[str, Any] | None = None, encoded_attributes: Raw | None = None) -> None:
        """`encoded_attributes` are further attributes that many operations share: see `encoding.encode_attributes`."""
        self.name = name
        self.begin_attributes = attributes
        self._encoded = encoded_attributes
        self._attributes: dict[str, Any] | None = None
        self._context_token: Any = None
        self.phase_failure: tuple[str, BaseException] | None = None
        """The phase that failed last, and its exception. The library may recover from it."""
        self.open_page: list[Page] = []
        """Contains the page while the operation runs. Ending it pops the page, which is atomic: it ends once, whichever thread is first."""
        self.running_phase = 0
        """Number of the patched call that runs as a phase in the thread of the operation; 0 if none. Of all open phases in that thread, the
        innermost has the highest number."""
        self.sampled = True
        """False: only metrics count the operation. It is recorded like any other, so that they also count it if the process dies."""
        self.trace_id = self.span_id = self.trace_state = ""
        """The ids are set before the operation begins if other processes know those that it will have as the root of a trace.
        `trace_state` is the W3C `tracestate` of its parent."""
        self.ancestors: tuple[str, ...] | None = ()
        """`events.ancestor` of each enclosing span from the root on; empty for a root, None if one is unknown.

        Laminar needs them before those spans end.
        """
        self.inherited_attributes: Mapping[str, Any] = _NO_ATTRIBUTES

    def __init_subclass__(cls) -> None:
        _operation_types.add(cls)

    @property
    def error_codes(self) -> ErrorCodes:
        """Error codes of the library's exceptions. They have precedence over the general tables."""
        return {}

    # Begin and end

    def begin(self) -> Context | None:
        """Start the operation. Return the current context, to which `__enter__` adds the operation; None if it is not recorded.

        The root of a trace that is not recorded becomes current here, so that nothing inside it is recorded. So does an operation of such a
        trace whose parent is not in the current context.
        """
        if not recorder.on:
            return None
        context: Context | None = None
        try:
            context = get_current()
            enclosing: Any = None
            if context:
                if context.get(SUPPRESSED) or context.get(SUPPRESSED_BY_NAME):
                    return None
                enclosing = parent_span(context)
            if enclosing is None and (candidates or self.trace_id) and (task_context := self._find_task_context()) is not None:
                enclosing = parent_span(task_context)
                context = with_parent(context, enclosing, task_context.get(TASK_KEY))
            if enclosing is None and recorder.samples is None and recorder.process_parent is None and "lmnr" not in sys.modules:
                self.trace_id, parent_id = self.trace_id or new_trace_id(), ""  # the usual root: nothing to look at
            elif type(enclosing) in _operation_types:
                self.trace_id, parent_id = enclosing.ids()
                self.ancestors, self.trace_state, self.sampled = enclosing.path_from_root(), enclosing.trace_state, enclosing.sampled
            elif (found_id := self._join_trace(enclosing, context)) is not None:
                parent_id = found_id
            else:
                return None
            task: Any = context.get(TASK_KEY) if context else None
            attributes = self.begin_attributes
            if attributes is not None and type(attributes) is not Redacted and not is_clean(attributes):
                attributes = redact.attributes(attributes)
            self._counting_task = None
            if task is not None:
                attributes = {**task.shared_attributes, **(attributes or {})}
                if getattr(enclosing, "kind", None) != events.OPERATION:  # else part of another operation: that one is counted
                    self._counting_task = task
            if self.ancestors or self.inherited_attributes or self.trace_state or not self.sampled:
                attributes = self._with_trace_context(attributes)
            page = recorder.take()
            if page is None:
                self.trace_id = ""
                return None
            self.span_id = span_id = self.span_id or new_span_id()
            self.thread = _thread()
            self._usage = self._last_usage = None if self.name in _short_operations else resource_usage.read_usage()
            self.phases: list[tuple[Any, ...]] = []
            self.phase_numbers = _count(1)
            self.start = start = _monotonic()
            # The wall clock is read once. All other times come from the monotonic clock, so that no duration is negative.
            self.clock_offset = offset = _wall() - start
            begin = (events.BEGIN, span_id, start + offset, self.kind, self.name, self.trace_id, parent_id, attributes, self._encoded)
            self.page = page
            self.open_page.append(page)
            page.append(encode_line(begin))
        except BaseException as error:
            self._leave_context(context)
            self.finish(error)  # a signal handler may have raised after the begin, and the host program continues without the operation
            record_fault(error)
            return None
        return context

    def _join_trace(self, enclosing: Any, context: Context) -> str | None:
        """Find the trace of an operation that is not part of another one of ours. Return its parent's id; None if it is not recorded."""
        parent, samples = find_parent(enclosing, recorder.process_parent), recorder.samples
        if parent is None:
            self.trace_id = self.trace_id or new_trace_id()
            self.sampled = samples is None or samples(self.trace_id, None)
            if self.sampled or recorder.unsampled:
                return ""
            self.span_id = ""
            self._make_unsampled_span_current(context)
            return None
        self.sampled = parent.sampled if samples is None else samples(parent.trace, parent.sampled)
        if not self.sampled and (not recorder.unsampled or type(enclosing) is UnsampledSpan):  # the parent's decision holds
            if context is not get_current():  # the parent was found elsewhere, and what begins inside might not find it
                self.trace_id, self.span_id = enclosing.operation.trace_id if type(enclosing) is UnsampledSpan else parent.trace, ""
                self._make_unsampled_span_current(context)
            return None
        self.trace_id = parent.trace
        self.ancestors, self.inherited_attributes, self.trace_state = parent.path, parent.attributes, parent.trace_state
        return parent.span

    def may_be_recorded(self) -> bool:
        """Return False if the operation, which has not begun, will not be recorded: its trace is not sampled, and nothing counts it.

        For instrumentors, before they look at a large state. A new trace gets its id here, because samplers decide by it.
        """
        samples, process_parent = recorder.samples, recorder.process_parent
        if recorder.unsampled or (samples is None and (process_parent is None or process_parent.sampled)) or self.open_page:
            return True
        context = get_current()
        enclosing = parent_span(context) if context else None
        if enclosing is None and candidates and (task_context := self._find_task_context()) is not None:
            enclosing = parent_span(task_context)
        if type(enclosing) in _operation_types:
            return True
        parent = find_parent(enclosing, process_parent)
        if parent is None:
            self.trace_id = self.trace_id or new_trace_id()
            return samples is None or samples(self.trace_id, None)
        return parent.sampled if samples is None else samples(parent.trace, parent.sampled)

    def _with_trace_context(self, attributes: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return the attributes of the `begin` line: these, and what is known about the trace."""
        added: dict[str, Any] = {}
        if not self.sampled:
            added[events.UNSAMPLED] = recorder.unsampled  # first: a line that is too long loses the last attributes
        added.update(self.inherited_attributes)
        if attributes is not None:
            added.update(attributes)
        if self.ancestors or self.inherited_attributes:
            added[events.ANCESTORS] = self.ancestors
        if self.trace_state:
            added[events.TRACE_STATE] = events.pack_trace_state(self.trace_state)
        return added

    def _find_task_context(self) -> Context | None:
        """Return the context of the task to which the operation belongs, if there is no current span; None if it belongs to none."""
        return running_tasks.find_context(self.begin_attributes.get(names.TASK_ID) if self.begin_attributes else None)

    def resume(self) -> None:
        """Make the operation current, after `begin` or `suspend`. Does nothing if it has ended or is not recorded.

        The exception is the root of a trace that is not recorded: it becomes current, so that nothing inside it is recorded.
        """
        context = get_current()
        try:
            if self.open_page:
                self._make_current(context)
            elif self.trace_id and not self.span_id:
                self._make_unsampled_span_current(context)
        except BaseException:  # raised by a signal handler
            self._leave_context(context)
            raise

    def _make_unsampled_span_current(self, context: Context) -> None:
        """For the root of a trace that is not recorded: it has a trace id and no span id. Nothing inside it is recorded either."""
        inner = with_span(context, UnsampledSpan(self))
        self._position_token = current_position.set(None)
        self._context_token = attach(inner)

    def _make_current(self, context: Context) -> None:
        inner = with_span(context, self)
        self._position_token = current_position.set((self, 0, None))
        self._context_token = attach(inner)

    def suspend(self) -> None:
        """Make the operation no longer current, without ending it: between two steps of a generator, or if the rest runs elsewhere."""
        token = self._context_token
        if token is not None:
            self._context_token = None
            try:
                current_position.reset(self._position_token)
                detach(token)
            except ValueError as error:  # left in another context than it was entered in: OpenTelemetry's context there stays as it is
                raise_host_exception(error)
                current_position.set(None)
            except BaseException:  # raised by a signal handler
                self._leave_context(getattr(token, "old_value", None))
                raise

    def release(self) -> None:
        """Let the caller of an async save go on, while the save continues elsewhere until `finish`."""
        self.suspend()
        self.set_released()

    def set_released(self) -> None:
        """Record that an async save does not hold up its caller any more. Only the first call counts; later waits are `add_blocked`."""
        is_save = self.open_page and self.name == "save" and self.kind == events.OPERATION
        if is_save and names.ASYNC_BLOCKED not in (self._attributes or _NO_ATTRIBUTES):
            seconds = self.elapsed()
            self.set_trusted({names.ASYNC_BLOCKED: seconds, names.ASYNC_RELEASED: seconds})

    def add_blocked(self, seconds: float) -> None:
        """Add a time for which the program waited for an async save, after the call that began it had returned."""
        blocked = (self._attributes or _NO_ATTRIBUTES).get(names.ASYNC_BLOCKED)
        if self.open_page and blocked is not None:
            self.set_trusted({names.ASYNC_BLOCKED: blocked + seconds})

    def elapsed(self) -> float:
        """Return the seconds since the operation began."""
        return (_monotonic() - self.start) / 1e9

    def _leave_context(self, outer: Any) -> None:
        """Make the context `outer` current again, after a signal handler interrupted us at an unknown point."""
        self._context_token = None
        span: Any = get_current().get(SPAN_KEY)
        if span is self or (type(span) is UnsampledSpan and span.operation is self):
            attach(outer if isinstance(outer, Context) else Context())
        position = current_position.get()
        if position is not None and position[0] is self:
            current_position.set(None)

    def __enter__(self) -> Self:
        context: Context | None = None
        try:
            context = self.begin()
            if context is not None:
                self._make_current(context)
        except BaseException as error:  # raised by a signal handler: the block does not run, so nobody else ends the operation
            self._leave_context(context)
            self.finish(error)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        token = self._context_token
        try:
            self.suspend()
            self.finish(error)
        except BaseException as caught:  # raised by a signal handler
            self._leave_context(getattr(token, "old_value", None))
            self.finish(error or caught)
            raise

    def finish(self, error: BaseException | None = None) -> None:
        """End the operation, with the exception that ended it, if any. Only the first call counts."""
        if not self.open_page:  # not recorded: the exception below would cost more than all the rest
            return
        try:
            page = self.open_page.pop()
        except IndexError:
            return
        fault: BaseException | None = None
        try:
            end = _monotonic()
            offset = self.clock_offset
            if end - self.start < _LEAST_DURATION:
                if self._usage is not None:
                    _short_operations.add(self.name)
            else:
                _short_operations.discard(self.name)
                if self._usage is not None and self.thread == _thread():
                    self.set_trusted(resource_usage.usage_attributes(self._usage, resource_usage.read_usage()))
            if error is not None:
                failed_phase = self.find_failed_phase(error)
                failure = classify(error, failed_phase, self.error_codes)
                if failure.outcome == "error":
                    exception = exception_attributes(error, stack=True, message=self.records_message)
                    page.append(encode_line((events.EVENT, self.span_id, end + offset, spans.EVENT_EXCEPTION, exception)))
                self.set_trusted(failure.attributes(failed_phase))
            if self._counting_task is not None:
                self._count_in(self._counting_task)
            end_line = encode_line((events.END, self.span_id, end + offset, self._attributes, self.phases, self.start + offset))
        except BaseException as caught:  # our fault, or raised by a signal handler: the operation ends in any case
            end_line, fault = self._minimal_end_line(error), caught
        self.phase_failure = None  # the exception refers to frames of the host program, and those to us: a cycle
        try:
            page.finish(end_line)  # once: a page that was given back twice would serve two operations
        except Exception as caught:
            record_fault(caught)
        if fault is not None:
            record_fault(fault)

    def _count_in(self, task: Any) -> None:
        """Count the operation, which is about to end, in the task that it belongs to."""
        attributes = self._attributes or _NO_ATTRIBUTES
        task.count(self.name, attributes.get(names.OUTCOME), attributes.get(names.SIZE_STORED))

    def drop(self) -> None:
        """End the operation without a record, because it turned out to be nothing. No span may have it as its parent."""
        self.phase_failure = None
        try:
            self.open_page.pop().discard()
        except IndexError:  # not recorded, or ended
            return

    def _minimal_end_line(self, error: BaseException | None) -> bytes:
        """Return an `end` line with the outcome only, because the full one could not be built."""
        outcome = {names.OUTCOME: "ok" if error is None else "error"}
        return encode_line((events.END, self.span_id, _monotonic() + self.clock_offset, outcome, [], 0))

    def move_to_this_thread(self) -> None:
        """Continue in the calling thread: the phases that follow run there. Resource usage is that of this thread from now on."""
        self.thread = _thread()
        self._usage = self._last_usage = resource_usage.read_usage()

    # Attributes and phases

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes, with names of docs/semconv.md or your own. Values must be small; secrets are redacted."""
        try:
            self.set_trusted(redact.attributes(attributes))
        except Exception as error:
            record_fault(error)

    def set_trusted(self, attributes: dict[str, Any]) -> None:
        """Add attributes without redaction: numbers, and texts that are already redacted. The dict may be changed later."""
        if self._attributes is None:
            self._attributes = attributes
        else:
            self._attributes.update(attributes)

    def count_dropped_phase(self) -> None:
        """Count a phase for which the record of the operation had no room."""
        dropped = (self._attributes or {}).get(names.PHASES_DROPPED, 0)
        self.set_trusted({names.PHASES_DROPPED: dropped + 1})

    def add_phase_failure(self, phase: str, error: BaseException) -> None:
        """Remember the exception that ended a phase. Of several phases that it or its causes ended, the first one counts: the innermost."""
        if self.open_page and (self.phase_failure is None or not is_caused_by(error, self.phase_failure[1])):
            self.phase_failure = phase, error

    def find_failed_phase(self, error: BaseException) -> str | None:
        """Return the phase in which the exception that ends the operation, or a cause of it, was raised; None if in none."""
        failure = self.phase_failure
        return failure[0] if failure is not None and is_caused_by(error, failure[1]) else None

    def phase(self, name: str) -> Phase:
        """Return a phase of this operation, to be used in a `with`."""
        from ckpt_observe.record.phase import Phase  # noqa: PLC0415 - the module of phases imports this one

        return Phase(self, name)

    def read_cpu_time(self) -> dict[str, Any]:
        """Return the CPU time of this thread since the last reading, as an attribute; nothing if usage is not read for this operation.

        It includes the phases since then that were too short (under 0.1 ms) for a reading of their own.
        """
        before = self._last_usage
        if before is None:
            return {}
        self._last_usage = resource_usage.read_usage()
        return {names.CPU_TIME: resource_usage.cpu_seconds(before, self._last_usage)}

    # The current position within the operation

    def ids(self) -> tuple[str, str]:
        """Return trace and span id, in hex, of the phase that runs in this context, or of the operation."""
        position = current_position.get()
        number = self.running_phase if position is None or position[0] is not self else max(self.running_phase, position[1])
        return self.trace_id, phase_span_id(self.span_id, number) if number else self.span_id

    def attribute_owner(self) -> Operation | Phase:
        """Return the `Phase` that runs in this context, or else the operation, also while a patched call runs as a phase."""
        position = current_position.get()
        return self if position is None or position[0] is not self or position[2] is None else position[2]

    def path_from_root(self) -> tuple[str, ...] | None:
        """Return `events.ancestor` of each span from the root to the current phase or operation; None if one of the names is unknown."""
        if self.ancestors is None:
            return None
        path = (*self.ancestors, events.ancestor(self.span_id, self.kind, self.name))
        position = current_position.get()
        if self.running_phase:
            return None
        if position is None or position[0] is not self or not position[1]:
            return path
        # Nested phases, and patched calls, whose names are not stored: searching for them is too much work for the host program's thread.
        phase = position[2]
        return (*path, events.ancestor(self.ids()[1], self.kind, phase.name)) if phase is not None and not phase.parent else None


_operation_types.add(Operation)


def current_operation() -> Operation | None:
    """Return the operation that runs in this context, or None. A task is not an operation here."""
    position = current_position.get()
    return None if position is None else position[0]
