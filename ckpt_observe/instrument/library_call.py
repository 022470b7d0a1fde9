"""Operations of a checkpoint library. A row of an instrumentor's table is a `LibraryCall`; a call that it observes is a `LibraryOperation`.

One thing is one operation: `aput` that calls `put`, `super().put()`, and a saver that hands on to another saver are recognised by the ids
of the checkpoint. The attributes that `describe` returns are redacted, and so is everything that is `set` later.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from msgspec import Raw
from opentelemetry.context import Context

from ckpt_observe.instrument.instrumentor import Instrumentor
from ckpt_observe.instrument.wrappers import Args, BeginOperation, Kwargs, ObservedCall, TimedScope, Wrapper
from ckpt_observe.record import running_tasks
from ckpt_observe.record.async_operation import AsyncOperation
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import Operation, current_position
from ckpt_observe.record.phase import Phase
from ckpt_observe.record.phase_sum import PhaseRow, PhaseSum, continue_phase, start_phase
from ckpt_observe.record.recorder import recorder
from ckpt_observe.record.trace_context import attach, get_current, may_record, with_span
from ckpt_observe.semconv import attributes as names

Arguments: TypeAlias = dict[str, Any]
"""The arguments of a call by name. Optional ones that the caller left out are missing."""
Describe: TypeAlias = Callable[[Any, Arguments], Mapping[str, Any] | None]
"""Takes the object and the arguments of a call. Returns the attributes of the operation, or None to observe nothing."""

IDENTITY: Final = (names.TASK_ID, names.NAMESPACE, names.ID, names.WRITER_ID, names.LOCATION)
"""The attributes that tell whether two calls do the same thing, unless the row of the library has others."""
_PHASES: Final = {"load": "read", "restore": "read", "list": "read", "verify": "read"}
"""The phase that an operation becomes inside an operation of another library. All others write."""

_monotonic, _get_position = time.perf_counter_ns, current_position.get
_WITHOUT_SIZE: Final = ("list", "delete", "prune")
"""Operations that read several checkpoints, or only to remove them."""


class LibraryOperation(AsyncOperation):
    """An operation of a library."""

    __slots__ = ("call", "details", "failure_code", "first_use", "items", "sums")

    def __init__(self, call: LibraryCall, attributes: Mapping[str, Any], shared: Raw | None = None) -> None:
        Operation.__init__(self, call.operation, attributes, shared)  # not by way of `super`, which takes 0.2 µs per class
        self.completion = None
        self.call = call
        self.items = 0
        """Number of items that a generator has produced."""
        self.sums: dict[str, PhaseSum] = {}
        self.first_use: tuple[PhaseRow, ...] = ()
        """The phases of the first use of a context manager, which is usually the only one: `total` adds further calls to them."""
        self.details: Any = None
        """What the instrumentor of the library remembers about the operation."""
        self.failure_code = ""
        """Set by `before_end` if the instrumentor knows more than the exception says, such as that the disk is full."""

    @property
    def error_codes(self) -> ErrorCodes:
        """Error codes of the library's exceptions."""
        return {"builtins.BaseException": self.failure_code} if self.failure_code else self.call.error_codes

    def total(self, phase: str) -> PhaseSum:
        """Return the phase that sums up calls of this kind. It starts with the first call, within the phase that runs here."""
        total = self.sums.get(phase)
        if total is None:
            for row in self.first_use:
                if row[0] == phase:
                    self.first_use = tuple([other for other in self.first_use if other is not row])
                    return self.sums.setdefault(phase, continue_phase(row))
            position = current_position.get()
            parent = self.running_phase
            if position is not None and position[1] > parent and position[0] is self:
                parent = position[1]
            total = self.sums.setdefault(phase, start_phase(self, phase, parent, _monotonic() - self.start))
        return total

    def discard_sizes(self) -> None:
        """Forget how many bytes the phases had so far: the library does the same once more, because it failed."""
        for total in self.sums.values():
            total.bytes_in = total.bytes_out = 0

    def attribute(self, name: str) -> Any:
        """Return an attribute with which the operation began."""
        return self.begin_attributes.get(name) if self.begin_attributes else None

    def _end(self, error: BaseException | None) -> None:
        """End the operation, after adding what the calls in its phases sum up to."""
        if self.open_page:
            try:
                if self.sums:
                    self._add_totals(self.sums)
                self.phases += self.first_use
                if self.items:
                    self.set_trusted({names.COUNT: self.items})
            except Exception as fault:
                record_fault(fault)
            before_end = self.call.before_end
            if before_end is not None:
                try:
                    before_end(self, error)
                except Exception as fault:
                    record_fault(fault)
        Operation.finish(self, error)
        self.details = None  # may refer to the state, and a context that the host program copied keeps the operation alive

    def drop(self) -> None:
        """End the operation without a record."""
        super().drop()
        self.details = None
        for total in self.sums.values():
            total.error = None

    def _add_totals(self, sums: dict[str, PhaseSum]) -> None:
        add_phase = self.phases.append
        for total in sums.values():
            if total.calls == 1 and total.error is None:  # `record`, for the usual case
                sizes = (total.bytes_in or None, total.bytes_out or None) if total.bytes_out or total.bytes_in else None
                add_phase((total.name, total.number, total.parent, total.start, total.stop, sizes))
            else:
                add_phase(total.record(self))
        serialized = sums.get("serialize")
        if serialized is not None:
            size = serialized.bytes_out
        else:
            deserialized = sums.get("deserialize")
            size = 0 if deserialized is None else deserialized.bytes_in
        if size and self.name not in _WITHOUT_SIZE:
            self.set_trusted({names.SIZE_SERIALIZED: size})

    def _make_current(self, context: Context) -> None:
        """Make the operation current; for OpenTelemetry only if it will not be dropped, because a dropped span must have no children."""
        inner = with_span(context, self) if self.call.is_nothing is None else context
        self._position_token = current_position.set((self, 0, None))
        self._context_token = attach(inner)

    def _find_task_context(self) -> Context | None:
        """Return the context of the run or task to which the operation belongs, if there is no current span."""
        context = running_tasks.find_context(self.attribute(names.TASK_ID), self.call.system)
        return self.call.find_parent(self) if context is None and self.call.find_parent is not None else context


def current_library_operation(system: str) -> LibraryOperation | None:
    """Return the operation of this library (of any, if empty) that is running in this context, or None."""
    position = current_position.get()
    if position is None:
        return None
    operation = position[0]
    if type(operation) is not LibraryOperation or not operation.open_page:
        return None
    return operation if not system or operation.call.system == system else None


@dataclass(frozen=True, slots=True, eq=False)
class LibraryCall:
    """How a callable of a library becomes an operation. If a function of the row fails, the operation lacks its attributes, and no more."""

    system: str
    operation: str
    describe: Describe
    record_result: Callable[[Any, Any], object] | None = None
    """Takes the operation and its result, after success. Uses `operation.set`, which redacts."""
    before_end: Callable[[LibraryOperation, BaseException | None], object] | None = None
    """Called with the exception, if any, when the totals of the phases are known."""
    shared: Callable[[Any], Raw | None] | None = None
    """Returns attributes that many operations of an object share: see `encoding.encode_attributes`."""
    inside: Literal["operation", "phase", "nothing"] = "operation"
    """What a call becomes inside an operation of another library, so that nothing is counted twice."""
    error_codes: ErrorCodes = field(default_factory=dict)
    """Error codes of the library's exceptions. They have precedence over the general tables."""
    prepare: Callable[[LibraryOperation, Any, Arguments], object] | None = None
    """Called before the operation begins, for instrumentors that need `operation.details`; not for one that will not be recorded, unless
    there is `find_parent`, because the trace is then agreed upon with other processes."""
    find_parent: Callable[[LibraryOperation], Context | None] | None = None
    """Takes an operation that would be the root of a trace. Returns the context of its parent in another process, or None."""
    find_future: Callable[[Any], Any] | None = None
    """Takes the result. Returns the future of an async save if it is only a part of the result; the save ends with it."""
    is_nothing: Callable[[Any], bool] | None = None
    """Takes the result. True: the call did nothing worth a record, such as a lookup that finds nothing, and the operation is dropped. A
    failure is always recorded."""
    identity: tuple[str, ...] = IDENTITY
    """The attributes that tell whether a call inside an operation of the same kind does the same thing, and is not recorded again."""

    def wrapper_for(self, original: Any, declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable. `declared` is the method of the base class, whose signature counts: overrides may differ."""
        begin = self.begin_function(parameter_names(original if declared is None else declared))
        record_result = None if self.record_result is None and self.is_nothing is None else self._record_result
        return ObservedCall(begin, record_fault, record_result, _count_item, self.find_future).wrapper_for(original, declared)

    def begin_function(self, parameters: tuple[str, ...]) -> BeginOperation:
        """Return a function that takes a call and returns its operation, or the phase of another library's operation, not entered yet.

        It returns None to observe nothing. `parameters` are the names of the callable's positional parameters.
        """
        system, describe, shared_attributes, prepare = self.system, self.describe, self.shared, self.prepare
        finds_parent = self.find_parent is not None

        def begin(instance: Any, args: Args, kwargs: Kwargs) -> TimedScope | None:
            if (get_current() or not recorder.on) and not may_record():
                return None
            arguments = dict(zip(parameters, args))  # noqa: B905 - `strict=False` takes 50 ns
            if kwargs:
                arguments.update(kwargs)
            attributes: Mapping[str, Any] | None
            try:
                attributes = describe(instance, arguments)
            except Exception as error:
                record_fault(error)
                attributes = {names.SYSTEM: system}
            if attributes is None:
                return None
            position = _get_position()
            if position is not None and position[0].open_page:
                enclosing = position[0]
                if type(enclosing) is LibraryOperation and enclosing.call.system == system:
                    if self._does_the_same(enclosing, attributes):
                        if enclosing.phase_failure is not None:
                            enclosing.discard_sizes()
                        return None
                elif self.inside != "operation":
                    return None if self.inside == "nothing" else Phase(enclosing, _PHASES.get(self.operation, "write"))
            shared: Raw | None = None
            try:
                if shared_attributes is not None:
                    shared = shared_attributes(instance)
            except Exception as error:
                record_fault(error)
            operation = LibraryOperation(self, attributes, shared)
            try:
                if prepare is not None:
                    is_usual = recorder.samples is None and recorder.process_parent is None  # asked here, because a call takes 0.15 µs
                    if is_usual or finds_parent or operation.may_be_recorded():
                        prepare(operation, instance, arguments)
            except Exception as error:
                record_fault(error)
            return operation

        return begin

    def _does_the_same(self, enclosing: LibraryOperation, attributes: Mapping[str, Any]) -> bool:
        return enclosing.name == self.operation and all(enclosing.attribute(name) == attributes.get(name) for name in self.identity)

    def _record_result(self, operation: Any, result: Any) -> None:
        if type(operation) is not LibraryOperation or not operation.open_page:  # a phase of another operation, or not recorded
            return
        if self.is_nothing is not None and self.is_nothing(result):
            operation.drop()
        elif self.record_result is not None:
            self.record_result(operation, result)


@dataclass(frozen=True, slots=True, eq=False)
class MemberArgument:
    """A callable one of whose arguments is an object of a family: from then on, the object's class is observed."""

    instrumentor: Instrumentor
    family: str
    """Name of the family."""
    parameter: str

    def wrapper_for(self, original: Any, _declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        parameters = parameter_names(original)
        position = parameters.index(self.parameter) if self.parameter in parameters else len(parameters)

        def call(wrapped: Callable[..., Any], _instance: Any, args: Args, kwargs: Kwargs) -> Any:
            try:
                member = args[position] if position < len(args) else kwargs.get(self.parameter)
                if member is not None:
                    self.instrumentor.adopt(self.family, member)
            except Exception as error:
                record_fault(error)
            return wrapped(*args, **kwargs)

        return call


def parameter_names(function: Any) -> tuple[str, ...]:
    """Return the names of the positional parameters of a function or method, without `self`."""
    function = getattr(function, "__func__", function)  # a classmethod or staticmethod
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return ()
    positional = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return tuple(positional[1:] if positional[:1] in (["self"], ["cls"]) else positional)


def _count_item(operation: Any, _item: Any) -> None:
    if type(operation) is LibraryOperation:  # and not a phase
        operation.items += 1
