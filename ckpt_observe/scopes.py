"""The public face for own checkpoint code: `task`, `checkpoint` and `phase`, each a context manager and a decorator, sync and async."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final, Generic, ParamSpec, Self, TypeVar

from opentelemetry.trace import get_current_span

from ckpt_observe.errors import ConfigError
from ckpt_observe.instrument.wrappers import ObservedCall
from ckpt_observe.record import redact, trace_context
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import Operation, Task, current_operation
from ckpt_observe.record.phase import Phase
from ckpt_observe.record.recorder import recorder
from ckpt_observe.record.trace_context import UnsampledSpan
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.values import OPERATIONS

_NOTHING: Final[Mapping[str, Any]] = {}
Scoped = TypeVar("Scoped", bound=AbstractContextManager[Any])
P = ParamSpec("P")
R = TypeVar("R")


class Scope(Generic[Scoped]):
    """Something to enter, or to decorate a function, coroutine function or generator with: then each call is one."""

    def __init__(self, make: Callable[[], Scoped]) -> None:
        self._make = make
        self._entered: list[Scoped] = []

    def __enter__(self) -> Scoped:
        scoped = self._make()
        self._entered.append(scoped)
        scoped.__enter__()
        return scoped

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._entered.remove(entered := self._innermost())
        entered.__exit__(kind, error, trace)

    def _innermost(self) -> Scoped:
        """What was entered here: one scope may be used by many threads and tasks at once. It is current; or not recorded, as any other."""
        here: Any = get_current_span()
        if type(here) is UnsampledSpan:
            here = here.operation
        if here in self._entered:
            return here  # type: ignore[no-any-return]
        return next((each for each in reversed(self._entered) if not getattr(each, "_context_token", None)), self._entered[-1])

    async def __aenter__(self) -> Scoped:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        from ckpt_observe.instrument.patching import PatchedCallable  # noqa: PLC0415 - wrapt: only who decorates pays for it

        observed = ObservedCall(lambda *_: self._make() if trace_context.may_record() else None, record_fault)  # type: ignore[arg-type]
        return PatchedCallable(function, observed.wrapper_for(function))


def task(
    name: str,
    *,
    id: str | None = None,
    user: str | None = None,
    session: str | None = None,
    interval: float | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Scope[Task]:
    """A run that makes checkpoints. Its name, id, user and session are put on every checkpoint operation within it.

    `interval` is the time in seconds in which it means to save at least once: alerts then know when one is late.
    """
    given = {names.TASK_NAME: name, names.TASK_ID: id, names.USER_ID: user, names.SESSION_ID: session, names.INTERVAL: interval}
    shared = _redacted({key: value for key, value in given.items() if value is not None})
    own = _redacted(attributes or {})
    return Scope(lambda: Task(redact.text(str(name)), shared(), own()))


def checkpoint(
    operation: str,
    *,
    id: str | None = None,
    step: int | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Scope[Operation]:
    """One checkpoint operation of your own code: `save`, `load`, `restore`, `delete`, `list`, `prune` or `verify`."""
    if operation not in OPERATIONS:
        raise ConfigError(f"checkpoint operation '{operation}' is not known; use one of: {', '.join(OPERATIONS)}")
    known = {names.SYSTEM: "custom", names.ID: id, names.STEP: step}
    given = _redacted({key: value for key, value in known.items() if value is not None} | dict(attributes or {}))
    return Scope(lambda: Operation(operation, given()))


def _redacted(attributes: Mapping[str, Any]) -> Callable[[], Mapping[str, Any]]:
    """Found out when it is first needed, and once, however often a scope is entered; never where nobody observes."""
    found: list[Mapping[str, Any]] = []

    def ask() -> Mapping[str, Any]:
        if recorder.on and not found:
            found.append(redact.attributes(attributes))
        return found[0] if found else _NOTHING

    return ask


def phase(name: str) -> Scope[Any]:
    """A part of the operation that is running here; nothing, if none is. `serialize`, `write`, ...: see the registry, or your own word."""

    def make() -> Any:
        operation = current_operation()
        return _NOBODY if operation is None else Phase(operation, name)

    return Scope(make)


class _Nobody:
    """Takes what a phase takes, and does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None: ...
    def set(self, attributes: Mapping[str, Any]) -> None: ...
    def suspend(self) -> None: ...
    def resume(self) -> None: ...


_NOBODY = _Nobody()
