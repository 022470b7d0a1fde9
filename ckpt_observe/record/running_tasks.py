"""The tasks that are running in this process, for operations in threads that lost the context.

Python's thread pools do not pass the context on: LangGraph loses it for 118 of 120 writes of parallel nodes. An operation that begins
without a current span therefore looks for its task here:

1. the running task with the task id of the operation,
2. the only running task of this process. The operation is marked as `inferred`. If several tasks are running, it could belong to any,
3. the context in which this process was started.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from opentelemetry.context import Context

from ckpt_observe.record.otel_span import is_own_span
from ckpt_observe.record.trace_context import SPAN_KEY, TASK_KEY, attach, get_current, has_laminar_span, parent_span, with_parent
from ckpt_observe.semconv import attributes as names
from ckpt_observe.support import forks

_Key = tuple[str, str]


class RunningTask(Protocol):
    """A task, or a run of a library that may be part of a task."""

    @property
    def context(self) -> Context | None:
        """The context of operations within it."""


class OutermostTask(RunningTask, Protocol):
    """A task that is not part of another one."""

    thread: int
    """The thread in which it began."""
    shared_attributes: Mapping[str, Any]

    def set(self, attributes: Mapping[str, Any]) -> None: ...

    def count(self, operation: str, outcome: Any, stored: Any) -> None: ...

    def may_contain(self, task_id: Any) -> bool:
        """Return False if an operation with this task id (None: it has none) cannot be part of the task."""


class TaskReference:
    """Stands for a task in the context of operations that are not known to run in its thread: it runs in another thread or process."""

    def __init__(self, shared_attributes: Mapping[str, Any], task: OutermostTask | None = None) -> None:
        self.shared_attributes = shared_attributes
        self._task = task

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes to the task, unless it runs in another process."""
        if self._task is not None:
            self._task.set(attributes)

    def count(self, operation: str, outcome: Any, stored: Any) -> None:
        """Count an operation in the task, unless it runs in another process."""
        if self._task is not None:
            self._task.count(operation, outcome, stored)


_by_id: Final[dict[_Key, list[weakref.ref[RunningTask]]]] = {}
"""The running tasks by system (empty: a task of the host program) and task id; the one that began last is last. Weak: a stream that is
abandoned when its event loop has been closed never ends."""
_outermost: Final[dict[int, weakref.ref[OutermostTask]]] = {}
"""The running tasks that are not part of another one."""
candidates: Final[set[int]] = set()
"""The keys of `_outermost`, 0 if this process may have been started in a context, and -1 if `_by_id` is not empty. If it is empty, a lookup
finds nothing: `begin` then saves the calls."""
_lock = threading.RLock()  # re-entrant: a signal handler may start a task
_process_context: Context | None = None
_parent_process_context: Context | None = None
"""In a forked child: the context in which its parent was started."""
_find_process_context: Callable[[], Context | None] | None = None
"""Returns the context in which this process was started as soon as it is known. None: it is known now, or will never be."""


def add(task: RunningTask, key: _Key) -> None:
    """Let operations with this system and task id find the task, until `remove` or until the task does not exist any more."""
    with _lock:
        _by_id.setdefault(key, []).append(weakref.ref(task, lambda _reference: remove(None, key)))
        candidates.add(-1)


def remove(task: RunningTask | None, key: _Key) -> None:
    """Remove a task that has ended, and tasks that do not exist any more. The others with this id can be found all the time."""
    with _lock:
        references = _without(task, _by_id.get(key, ()))
        if references:
            _by_id[key] = references
        else:
            _by_id.pop(key, None)
            if not _by_id:
                candidates.discard(-1)


def _without(task: RunningTask | None, references: Iterable[weakref.ref[RunningTask]]) -> list[weakref.ref[RunningTask]]:
    return [each for each in references if each() is not None and each() is not task]


def add_outermost(task: OutermostTask) -> None:
    """Let operations without a context find the task, as long as it is the only one."""
    number = id(task)
    _outermost[number] = weakref.ref(task, lambda _reference: _remove_number(number))
    candidates.add(number)


def remove_outermost(task: OutermostTask) -> None:
    """Remove a task that has ended."""
    _remove_number(id(task))


def _remove_number(number: int) -> None:
    _outermost.pop(number, None)
    candidates.discard(number)


def find_by_id(system: str, task_id: Any) -> Context | None:
    """Return the context of the running task or run with this id; None if there is none."""
    references = _by_id.get((system, task_id), ()) if _by_id and isinstance(task_id, str) else ()
    return next((task.context for reference in reversed(references) if (task := reference()) is not None), None)


def find_context(task_id: Any = None, system: str = "") -> Context | None:
    """Return the context of an operation that has no current span; None if it belongs to no task that is known."""
    return find_by_id(system, task_id) or (find_by_id("", task_id) if system else None) or _only_task(task_id) or find_process_context()


def find_process_context() -> Context | None:
    """Return the context in which this process was started, for code without a current span; None if Laminar has one."""
    context = process_context()
    return None if context is None or has_laminar_span() else context


def current_context() -> Context:
    """Return the context of operations that begin here: the current one, or that of the task to which this thread belongs."""
    context = get_current()
    return context if parent_span(context) is not None else find_context() or context


def enclosing_task() -> Any:
    """Return the task in which this code runs, or in which this process was started; None if there is none."""
    return get_current().get(TASK_KEY) or (None if (context := process_context()) is None else context.get(TASK_KEY))


def process_context() -> Context | None:
    """Return the context in which this process was started; None if it is not known."""
    if _find_process_context is not None and (context := _find_process_context()) is not None:
        set_process_context(context)
    return _process_context


def set_process_context(context: Context | None, find: Callable[[], Context | None] | None = None) -> None:
    """Set the context in which this process was started: that of all operations that belong to nothing else.

    `find` is called at each lookup until it returns the context, for processes that learn it after their start.
    """
    global _process_context, _find_process_context
    _process_context, _find_process_context = context, find
    if context is None and find is None:
        candidates.discard(0)
    else:
        candidates.add(0)


def leave_context_of_fork() -> None:
    """In a forked child that works for all tasks of its parent: do not belong to the one that happened to start it.

    The host program keeps its own context, as in a process that is not observed: its span, baggage and `suppress_instrumentation()`.
    """
    set_process_context(_parent_process_context)
    context = get_current()
    if is_own_span(context.get(SPAN_KEY)):
        context = Context({key: value for key, value in context.items() if key != SPAN_KEY})
    attach(with_parent(context, None, None))


def _only_task(task_id: Any) -> Context | None:
    """Return the context of the only running task of this process, unless it is certain that the operation is not part of it.

    In the thread in which the task began, Python does pass the context on: code without it, such as another coroutine, is not part of it.
    """
    references = list(_outermost.copy().values()) if len(_outermost) == 1 else []  # copied: another thread may add a task
    task = references[0]() if len(references) == 1 else None
    if task is None or task.thread == threading.get_ident() or not task.may_contain(task_id) or has_laminar_span():
        return None
    reference = TaskReference({**task.shared_attributes, names.TASK_INFERRED: True}, task)
    return Context({**(task.context or {}), TASK_KEY: reference})


def _reset_after_fork() -> None:
    """In a child: it was started in the context of the thread that forked, and the tasks of other threads do not run here."""
    global _lock, _parent_process_context
    _lock = threading.RLock()
    _parent_process_context = _process_context
    context = current_context()
    span = parent_span(context)
    if span is not None:
        set_process_context(Context({SPAN_KEY: span, TASK_KEY: context.get(TASK_KEY)}))
    _by_id.clear()
    candidates.difference_update(_outermost, (-1,))
    _outermost.clear()


forks.run_in_child(_reset_after_fork)
