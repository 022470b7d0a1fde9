"""Runs of a library, such as one invocation of a LangGraph graph: they become tasks, and keep the operations of their threads together.

Libraries hand work to thread pools, and Python's pools do not pass the context on: LangGraph loses it for 118 of 120 writes of parallel
nodes. An operation that begins in a thread without a context therefore looks up the run that it belongs to, by the id of its task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry.context import Context, get_current

from ckpt_observe.instrument.wrappers import Args, Kwargs, ObservedCall, Wrapper
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import Task
from ckpt_observe.record.trace_context import TASK_KEY, may_record
from ckpt_observe.semconv import attributes as names

_contexts: Final[dict[tuple[str, str], list[Context]]] = {}
"""The contexts of the runs in progress, by system and task id; the run that began last is last."""
_lock: Final = threading.RLock()  # re-entrant: a signal handler may start a run


def find_run_context(system: str, task_id: Any) -> Context | None:
    """Return the context of the run in progress that has this task id; None if there is none."""
    contexts = _contexts.get((system, task_id)) if _contexts and isinstance(task_id, str) else None
    return contexts[-1] if contexts else None


class _RunTask(Task):
    """The task of a run, with the error codes of its library."""

    __slots__ = ("_error_codes",)

    def __init__(self, attributes: dict[str, Any], error_codes: ErrorCodes) -> None:
        super().__init__(str(attributes[names.TASK_NAME]), attributes)
        self._error_codes = error_codes

    @property
    def error_codes(self) -> ErrorCodes:
        return self._error_codes


class LibraryRun:
    """One run of a library: a scope that is a task, unless the host program has begun a task itself."""

    __slots__ = ("_context", "_key", "_task")

    def __init__(self, system: str, attributes: dict[str, Any], error_codes: ErrorCodes) -> None:
        """`attributes` are shared by all operations of the run, and include the name and the id of its task."""
        self._key = system, str(attributes.get(names.TASK_ID, ""))
        self._task = None if TASK_KEY in get_current() else _RunTask(attributes, error_codes)
        self._context: Context | None = None

    def __enter__(self) -> Self:
        if self._task is not None:
            self._task.__enter__()
        self._context = context = get_current()
        with _lock:
            _contexts.setdefault(self._key, []).append(context)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with _lock:
            contexts = [each for each in _contexts.pop(self._key, ()) if each is not self._context]
            if contexts:
                _contexts[self._key] = contexts
        if self._task is not None:
            self._task.__exit__(kind, error, trace)

    def suspend(self) -> None:
        """Make the task no longer current, without ending it."""
        if self._task is not None:
            self._task.suspend()

    def resume(self) -> None:
        """Make the task current again."""
        if self._task is not None:
            self._task.resume()


@dataclass(frozen=True, slots=True, eq=False)
class RunCall:
    """A callable that runs a graph or a workflow: each call is a task."""

    system: str
    describe: Callable[[Any, Args, Kwargs], dict[str, Any] | None]
    """Takes the object and the arguments. Returns the attributes that all operations of the run share, or None to observe nothing."""
    error_codes: ErrorCodes = field(default_factory=dict)

    def wrapper_for(self, original: Any, declared: Any = None) -> Wrapper:
        """Return the wrapper for a callable."""
        return ObservedCall(self._begin, record_fault).wrapper_for(original, declared)

    def _begin(self, instance: Any, args: Args, kwargs: Kwargs) -> LibraryRun | None:
        attributes = self.describe(instance, args, kwargs) if may_record() else None
        return None if attributes is None else LibraryRun(self.system, attributes, self.error_codes)
