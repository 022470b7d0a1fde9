"""Runs of a library, such as one invocation of a LangGraph graph: they become tasks, and keep the operations of their threads together.

An operation that begins in a thread without a context finds the run that it belongs to by its task id: see `record.running_tasks`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from opentelemetry.context import Context

from ckpt_observe.instrument.wrappers import Args, Kwargs, ObservedCall, Wrapper
from ckpt_observe.record import running_tasks
from ckpt_observe.record.error_lookup import ErrorCodes
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.task import Task
from ckpt_observe.record.trace_context import may_record
from ckpt_observe.semconv import attributes as names


class RunTask(Task):
    """The task of a run that a library started. An operation with another task id is not part of it."""

    __slots__ = ("_id",)

    def __init__(self, attributes: dict[str, Any]) -> None:
        super().__init__(str(attributes[names.TASK_NAME]), attributes)
        self._id = attributes.get(names.TASK_ID)

    def may_contain(self, task_id: Any) -> bool:
        """Return whether an operation or a run with this task id may be part of the run: a graph that is called in a node may not."""
        return task_id in (None, self._id)


class _LibraryTask(RunTask):
    """The task of a `LibraryRun`, with the error codes of its library."""

    __slots__ = ("_error_codes",)

    def __init__(self, attributes: dict[str, Any], error_codes: ErrorCodes) -> None:
        super().__init__(attributes)
        self._error_codes = error_codes

    @property
    def task_id(self) -> None:
        """None: operations find the run by its system and id, because another library may use the same id."""

    @property
    def error_codes(self) -> ErrorCodes:
        return self._error_codes


class LibraryRun:
    """One run of a library: a scope that is a task, unless it is part of a task of the host program, or of a run with the same task id."""

    __slots__ = ("__weakref__", "_key", "_task", "context")

    def __init__(self, system: str, attributes: dict[str, Any], error_codes: ErrorCodes) -> None:
        """`attributes` are shared by all operations of the run, and include the name and the id of its task."""
        self._key = system, str(attributes.get(names.TASK_ID, ""))
        enclosing = running_tasks.enclosing_task()
        is_part = enclosing is not None and (type(enclosing) is not _LibraryTask or enclosing.may_contain(attributes.get(names.TASK_ID)))
        self._task = None if is_part else _LibraryTask(attributes, error_codes)
        self.context: Context | None = None

    def __enter__(self) -> Self:
        if self._task is not None:
            self._task.__enter__()
        self.context = running_tasks.current_context()
        running_tasks.add(self, self._key)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        running_tasks.remove(self, self._key)
        if self._task is not None:
            self._task.__exit__(kind, error, trace)

    def suspend(self) -> None:
        """Make the task no longer current, without ending it."""
        if self._task is not None:
            self._task.suspend()

    def release(self) -> None:
        """Make the task no longer current: the call has returned, and the run goes on elsewhere."""
        self.suspend()

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
