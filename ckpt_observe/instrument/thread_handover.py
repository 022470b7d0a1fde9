"""Work that a library hands to one of its threads stays in the context of the call: its phases belong to the operation of that call.

Threads and executors start without the context of the code that started them. Two rows repair that for a known hand-over, without a change
to the library's objects.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from ckpt_observe.instrument.wrappers import Args, Kwargs
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import current_position
from ckpt_observe.support.host_exceptions import ignore_errors

FindWork: TypeAlias = Callable[[Any, Args, Kwargs], object]
"""Takes the object and the arguments of a call. Returns the object by which the work is recognised."""
_MAX_WAITING: Final = 100
"""Number of contexts that are kept for work that has not begun. Work that is cancelled never begins."""


class _WaitingWork:
    """Work that was handed over and has not begun."""

    __slots__ = ("context", "key")

    def __init__(self, work: object) -> None:
        self.key = id(work)
        """The work itself is not kept, because it may be a large state. It is in use until it has begun."""
        self.context = contextvars.copy_context()

    def is_for_running_operation(self) -> bool:
        position = self.context.get(current_position)
        return position is not None and bool(position[0].open_page)


class ThreadHandover:
    """Use `hand_over` as the row of the function that gives work to a thread, and `run` as the row of the function that does it there.

    Both find the same object in their arguments, such as a queue, a state, or the thread itself. If the same object is handed over several
    times, such as the path `last.ckpt`, the work is done in that order.
    """

    def __init__(self, find_given_work: FindWork, find_work: FindWork, *, waits: bool = False) -> None:
        """`waits`: the function that hands over waits for the work, which may be shared by several threads. Else one thread does it."""
        self._find_given_work, self._find_work, self._waits = find_given_work, find_work, waits
        self._waiting: list[_WaitingWork] = []

    def hand_over(self, wrapped: Callable[..., Any], instance: Any, args: Args, kwargs: Kwargs) -> Any:
        """Remember the context of the running operation, before the call, because the work may begin during it."""
        waiting: _WaitingWork | None = None
        try:
            if current_position.get() is not None:
                self._forget_ended_operations()
                waiting = _WaitingWork(self._find_given_work(instance, args, kwargs))
                self._waiting.append(waiting)
                del self._waiting[:-_MAX_WAITING]
        except Exception as error:
            record_fault(error)
        try:
            result = wrapped(*args, **kwargs)
        except BaseException:
            self._remove(waiting)  # its operation ends now
            raise
        if self._waits:
            self._remove(waiting)
        return result

    def run(self, wrapped: Callable[..., Any], instance: Any, args: Args, kwargs: Kwargs) -> Any:
        """Do the work in the context of the call that handed it over."""
        context: contextvars.Context | None = None
        try:
            context = self._take(id(self._find_work(instance, args, kwargs)))
        except Exception as error:
            record_fault(error)
        return wrapped(*args, **kwargs) if context is None else context.copy().run(wrapped, *args, **kwargs)

    def withdraw(self, instance: Any, args: Args, kwargs: Kwargs) -> bool:
        """Forget work that the calling thread does itself, in the operation that handed it over. Return False if it has begun elsewhere."""
        key, position = id(self._find_work(instance, args, kwargs)), current_position.get()
        for waiting in self._waiting[:]:
            other = waiting.context.get(current_position)
            if waiting.key == key and position is not None and other is not None and other[0] is position[0]:
                return self._remove(waiting)
        return False

    def _take(self, key: int) -> contextvars.Context | None:
        for waiting in self._waiting[:]:
            if waiting.key == key and waiting.is_for_running_operation() and (self._waits or self._remove(waiting)):
                return waiting.context
        return None

    def _forget_ended_operations(self) -> None:
        for waiting in self._waiting[:]:
            if not waiting.is_for_running_operation():
                self._remove(waiting)

    def _remove(self, waiting: _WaitingWork | None) -> bool:
        """Return False if another thread has removed it. There is no lock, because a forked child could inherit it locked."""
        with ignore_errors(ValueError):
            self._waiting.remove(waiting)  # type: ignore[arg-type]
            return True
        return False
