"""Runs of a library, such as one invocation of a LangGraph graph: they become tasks, and keep the operations of their threads together.

Libraries hand work to thread pools, and Python's pools do not pass the context on: LangGraph loses it for 118 of 120 writes of parallel
nodes. An operation that begins in a thread without a context therefore looks up the run that it belongs to, by the id of its task.
"""

from __future__ import annotations

import threading
import weakref
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

_runs: Final[dict[tuple[str, str], list[weakref.ref[LibraryRun]]]] = {}
"""The runs in progress, by system and task id; the run that began last is last. Weak: a stream that is abandoned when its event loop has
been closed never ends."""
_lock: Final = threading.RLock()  # re-entrant: a signal handler may start a run


def find_run_context(system: str, task_id: Any) -> Context | None:
    """Return the context of the run in progress that has this task id; None if there is none."""
    references = _runs.get((system, task_id), ()) if _runs and isinstance(task_id, str) else ()
    return next((run.context for reference in reversed(references) if (run := reference()) is not None), None)


def _remove(key: tuple[str, str], ended: LibraryRun | None) -> None:
    """Remove a run that has ended, and runs that do not exist any more."""
    with _lock:
        references = [each for each in _runs.pop(key, ()) if each() is not None and each() is not ended]
        if references:
            _runs[key] = references


class _RunTask(Task):
    """The task of a run, with the error codes of its library."""

    __slots__ = ("_error_codes", "_id")

    def __init__(self, attributes: dict[str, Any], error_codes: ErrorCodes) -> None:
        super().__init__(str(attributes[names.TASK_NAME]), attributes)
        self._error_codes = error_codes
        self._id = attributes.get(names.TASK_ID)

    def differs_from(self, attributes: dict[str, Any]) -> bool:
        """Return whether a run with these attributes has a task id of its own: a graph that is called in a node, unlike a subgraph."""
        return attributes.get(names.TASK_ID) not in (None, self._id)

    @property
    def error_codes(self) -> ErrorCodes:
        return self._error_codes


class LibraryRun:
    """One run of a library: a scope that is a task, unless it is part of a task of the host program, or of a run with the same task id."""

    __slots__ = ("__weakref__", "_key", "_task", "context")

    def __init__(self, system: str, attributes: dict[str, Any], error_codes: ErrorCodes) -> None:
        """`attributes` are shared by all operations of the run, and include the name and the id of its task."""
        self._key = system, str(attributes.get(names.TASK_ID, ""))
        enclosing = get_current().get(TASK_KEY)
        is_part = enclosing is not None and not (type(enclosing) is _RunTask and enclosing.differs_from(attributes))
        self._task = None if is_part else _RunTask(attributes, error_codes)
        self.context: Context | None = None

    def __enter__(self) -> Self:
        if self._task is not None:
            self._task.__enter__()
        self.context, key = get_current(), self._key
        with _lock:
            _runs.setdefault(key, []).append(weakref.ref(self, lambda _reference: _remove(key, None)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        _remove(self._key, self)
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
