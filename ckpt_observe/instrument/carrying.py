"""Functions that run in the task and operation in which they were handed over, in another thread or process.

The host program's context stays as it is where they run: only operations of ours see that they were handed over. The exception is `carry`
within one process: an operation or task of ours becomes the current span, because the program asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from opentelemetry.context import Context, attach, get_current

from ckpt_observe.instrument.carried_function import restore
from ckpt_observe.instrument.patching import PatchedCallable
from ckpt_observe.instrument.wrappers import ObservedCall
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import current_position
from ckpt_observe.record.otel_span import is_own_span
from ckpt_observe.record.packed_context import PackedContext, pack, unpack
from ckpt_observe.record.recorder import recorder
from ckpt_observe.record.running_tasks import current_context
from ckpt_observe.record.trace_context import SPAN_KEY, TASK_KEY, detach, parent_span, with_parent
from ckpt_observe.support.host_exceptions import raise_host_exception

P = ParamSpec("P")
R = TypeVar("R")


class _CarriedScope:
    """Lets operations have the parent and the task of a context while a function runs. Records nothing itself.

    `current` are the entries of the context that become current, also for the host program.
    """

    def __init__(self, context: Context, current: Mapping[str, Any], position: Any) -> None:
        self._context, self._current, self._position = context, current, position
        self._tokens: tuple[Any, Any] | None = None

    def __enter__(self) -> None:
        self.resume()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.suspend()

    def resume(self) -> None:
        context = Context({**get_current(), **self._current})
        inner = with_parent(context, parent_span(self._context), self._context.get(TASK_KEY))
        self._tokens = attach(inner), current_position.set(self._position)

    def suspend(self) -> None:
        tokens, self._tokens = self._tokens, None
        if tokens is None:
            return
        try:
            current_position.reset(tokens[1])
            detach(tokens[0])
        except ValueError as error:  # left in another context than it was entered in: that one stays as it is
            raise_host_exception(error)

    def release(self) -> None:
        self.suspend()


class CarriedCallable(PatchedCallable):
    """A function with a context. It pickles together with the context, unlike other patched callables."""

    _self_packed: PackedContext | None = None

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        function = self.__wrapped__
        return restore, (function, self._self_packed)


def carry(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs in the task and operation of the caller of `carry`, wherever it is called.

    For threads and for pools of processes, which do not pass the context on:

        with ckpt_observe.task("train"):
            pool.submit(ckpt_observe.carry(checkpointer.save), "run-42", state)

    The returned function has the signature, the result and the exceptions of the original. It may be called several times, also
    concurrently. It can be pickled if the original can; a process that is not observed then gets the original. Returns the original
    itself if this process is not observed, or if there is nothing to carry.
    """
    span = get_current().get(SPAN_KEY)
    return _carry_from_here(function, {SPAN_KEY: span} if is_own_span(span) else {})


def carry_to_pool(function: Callable[P, R]) -> Callable[P, R]:
    """Do what `carry` does for a program that did not ask for it: whatever it is called in, the current span there stays the same."""
    return _carry_from_here(function, {})


def _carry_from_here(function: Callable[P, R], current: Mapping[str, Any]) -> Callable[P, R]:
    if not recorder.on or not callable(function):  # what cannot be called fails where it is called
        return function
    try:
        context = current_context()
        packed = pack(context)
        if packed is None:
            return function
        return _carry(function, context if parent_span(context) is not None else unpack(packed), current, packed, current_position.get())
    except Exception as error:
        record_fault(error)
        return function


def carry_packed(function: Callable[P, R], packed: PackedContext) -> Callable[P, R]:
    """Return the function with the context that it was pickled with."""
    try:
        return _carry(function, unpack(packed), {}, packed, None)
    except Exception as error:
        record_fault(error)
        return function


def _carry(function: Callable[P, R], context: Context, current: Mapping[str, Any], packed: PackedContext, position: Any) -> Callable[P, R]:
    scopes = ObservedCall(lambda *_call: _CarriedScope(context, current, position), record_fault)
    callable_with_context = CarriedCallable(function, scopes.wrapper_for(function))
    callable_with_context._self_packed = packed
    return callable_with_context
