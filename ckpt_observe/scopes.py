"""The public API for custom checkpoint code: `task`, `checkpoint` and `phase`.

Each works as a context manager and as a decorator, for sync and async code:

    with ckpt_observe.task("train", id="run-42", interval=600):
        with ckpt_observe.checkpoint("save", step=100):
            with ckpt_observe.phase("write"):
                path.write_bytes(data)

    @ckpt_observe.checkpoint("load")
    async def load(path): ...
"""

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
from ckpt_observe.record.operation import Operation, current_operation
from ckpt_observe.record.phase import Phase
from ckpt_observe.record.task import Task
from ckpt_observe.record.trace_context import UnsampledSpan
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.values import OPERATIONS

_NO_ATTRIBUTES: Final = redact.Redacted()
Scoped = TypeVar("Scoped", bound=AbstractContextManager[Any])
P = ParamSpec("P")
R = TypeVar("R")


class Scope(Generic[Scoped]):
    """A context manager for a task, an operation or a phase.

    As a decorator of a function, coroutine function or generator, it makes each call one of these. One scope may be used by several
    threads and asyncio tasks at once; only in a `with`, each thread or asyncio task needs its own scope of a phase.
    """

    def __init__(self, create: Callable[[], Scoped]) -> None:
        self._create = create
        self._active: list[Scoped] = []
        """The tasks, operations or phases that were entered and not exited, by any thread."""

    def __enter__(self) -> Scoped:
        scoped = self._create()
        try:
            self._active.append(scoped)
            scoped.__enter__()
        except BaseException as error:  # raised by a signal handler: the block does not run, and nobody else ends it
            self._forget(scoped)
            scoped.__exit__(type(error), error, error.__traceback__)
            raise
        return scoped

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        scoped: Scoped | None = None
        try:
            scoped = self._current()
            self._active.remove(scoped)
            scoped.__exit__(kind, error, trace)
        except BaseException as caught:  # raised by a signal handler, perhaps before anything was done
            scoped = scoped or self._current()
            self._forget(scoped)
            scoped.__exit__(type(caught), caught, caught.__traceback__)
            raise

    def _forget(self, scoped: Scoped) -> None:
        if scoped in self._active:
            self._active.remove(scoped)

    def _current(self) -> Scoped:
        """Return what this thread entered last: the current span, if it is of this scope.

        Phases and unrecorded operations are not current spans: then the last one that any thread entered.
        """
        if len(self._active) == 1:
            return self._active[0]
        span: Any = get_current_span()
        if type(span) is UnsampledSpan:
            span = span.operation
        if span in self._active:
            return span  # type: ignore[no-any-return]
        return next((scoped for scoped in reversed(self._active) if not getattr(scoped, "_context_token", None)), self._active[-1])

    async def __aenter__(self) -> Scoped:
        return self.__enter__()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        from ckpt_observe.instrument.patching import PatchedCallable  # noqa: PLC0415 - imports wrapt, which only decorators need

        observed = ObservedCall(lambda *_: self._create() if trace_context.may_record() else None, record_fault)  # type: ignore[arg-type]
        return PatchedCallable(function, observed.wrapper_for(function))


def task(
    name: str,
    *,
    id: str | None = None,
    user: str | None = None,
    session: str | None = None,
    interval: float | None = None,
    total_steps: int | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Scope[Task]:
    """Mark a run that saves checkpoints, such as a training or an agent run. It becomes the parent of the operations inside.

    Args:
        name: What runs, such as `train`. A metric label, so it must not contain ids.
        id: Identifies this run, also after a restart.
        user: Identifies the user, as `user.id`.
        session: Identifies the session, as `session.id`.
        interval: Seconds within which the run saves at least once. Alerts fire if a save is late.
        total_steps: Number of steps of the run, for progress and time left in the viewer. Saves need a `step`.
        attributes: Further attributes of the task's span. All arguments above are also set on every operation inside.

    """
    values = {
        names.TASK_NAME: name,
        names.TASK_ID: id,
        names.USER_ID: user,
        names.SESSION_ID: session,
        names.INTERVAL: interval,
        names.TOTAL_STEPS: total_steps,
    }
    shared = _redact_once({key: value for key, value in values.items() if value is not None})
    task_attributes = _redact_once(attributes)
    return Scope(lambda: Task(name, shared(), task_attributes()))


def checkpoint(
    operation: str,
    *,
    id: str | None = None,
    step: int | None = None,
    attributes: Mapping[str, Any] | None = None,
) -> Scope[Operation]:
    """Record one checkpoint operation of custom code.

    Args:
        operation: `save`, `load`, `restore`, `delete`, `list`, `prune` or `verify`.
        id: Identifies the checkpoint.
        step: Step of the run.
        attributes: Further attributes of the span.

    Raises:
        ConfigError: The operation has another name. Metrics and dashboards rely on this fixed set.

    """
    if not isinstance(operation, str) or operation not in OPERATIONS:
        raise ConfigError(f"'{redact.name(operation)}' is not a checkpoint operation; use one of: {', '.join(OPERATIONS)}")
    values = {names.SYSTEM: "custom", names.ID: id, names.STEP: step}
    span_attributes = _redact_once({key: value for key, value in values.items() if value is not None}, attributes)
    return Scope(lambda: Operation(operation, span_attributes()))


def _redact_once(values: Mapping[str, Any] | None, attributes: Mapping[str, Any] | None = None) -> Callable[[], Mapping[str, Any]]:
    """Return a function that returns the redacted attributes. They are computed at its first call at which something may be recorded.

    Before that it returns an empty mapping.
    """
    cache: list[Mapping[str, Any]] = []

    def redacted_attributes() -> Mapping[str, Any]:
        if not cache and trace_context.may_record():
            redacted = redact.attributes(values)
            if attributes is not None:
                redacted.update(redact.attributes(attributes))
            cache.append(redacted)
        return cache[0] if cache else _NO_ATTRIBUTES

    return redacted_attributes


def phase(name: str) -> Scope[Any]:
    """Record one phase of the current operation, such as `serialize` or `write`. Outside an operation it does nothing.

    docs/semconv.md lists the names that metrics and dashboards use; any other name is allowed.
    """

    def create() -> Any:
        operation = current_operation()
        return _NO_PHASE if operation is None else Phase(operation, name)

    return Scope(create)


class _NoPhase:
    """Has the methods of a phase, and does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None: ...
    def set(self, attributes: Mapping[str, Any]) -> None: ...
    def suspend(self) -> None: ...
    def resume(self) -> None: ...
    def release(self) -> None: ...


_NO_PHASE = _NoPhase()
