"""Tasks: runs that make checkpoints. A task is recorded like an operation, and operations within it share its attributes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from opentelemetry.context import Context

from ckpt_observe.record import redact, running_tasks
from ckpt_observe.record.guard import record_fault
from ckpt_observe.record.operation import Operation, current_position
from ckpt_observe.record.operation_counts import OperationCounts
from ckpt_observe.record.redact import Redacted
from ckpt_observe.record.trace_context import SPAN_KEY, TASK_KEY, UnsampledSpan, attach, get_current
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events


class Task(Operation):
    """A run that makes checkpoints. Its `shared_attributes` are set on every operation within it."""

    __slots__ = ("_counts", "_path", "shared_attributes")

    kind = events.TASK

    def __init__(self, name: str, shared_attributes: Mapping[str, Any], attributes: Mapping[str, Any] | None = None) -> None:
        shared = shared_attributes if type(shared_attributes) is Redacted else redact.attributes(shared_attributes)
        super().__init__(redact.name(name), {**shared, **(attributes or {})})
        self.shared_attributes: Mapping[str, Any] = shared
        self._path: tuple[str, ...] | None = None
        self._counts = OperationCounts()

    @property
    def context(self) -> Context:
        """The context of operations within the task. Built when it is needed: stored, it would be a cycle of references."""
        return Context({SPAN_KEY: self, TASK_KEY: self} if self.span_id else {SPAN_KEY: UnsampledSpan(self)})

    def begin(self) -> Context | None:
        """Start the task. Operations within it also get the attributes that it inherits from its parent."""
        is_outermost = get_current().get(TASK_KEY) is None
        context = super().begin()
        self.shared_attributes = {**self.inherited_attributes, **self.shared_attributes}
        if self.ancestors is not None:
            self._path = (*self.ancestors, events.ancestor(self.span_id, self.kind, self.name))
        if self.trace_id:  # also if its trace is not recorded: neither are operations in threads that lost the context
            self._announce(is_outermost=is_outermost)
        return context

    def _find_task_context(self) -> Context | None:
        """Return the context in which this process was started. A task in a thread without a context is not part of another task."""
        return running_tasks.find_process_context()

    def _announce(self, *, is_outermost: bool) -> None:
        """Let operations in threads that lost the context find the task."""
        try:
            self.thread = threading.get_ident()
            if is_outermost:
                running_tasks.add_outermost(self)
            if self.task_id is not None:
                running_tasks.add(self, ("", self.task_id))
        except Exception as error:
            record_fault(error)

    def finish(self, error: BaseException | None = None) -> None:
        """End the task."""
        running_tasks.remove_outermost(self)
        if self.task_id is not None:
            running_tasks.remove(self, ("", self.task_id))
        if self.open_page:
            self.set_trusted(self._counts.attributes())
        super().finish(error)

    def count(self, operation: str, outcome: Any, stored: Any) -> None:
        """Count an operation that ends within the task, also in the tasks around it. Called by any thread."""
        self._counts.add(operation, outcome, stored)
        if self.open_page and self._counting_task is not None:
            self._counting_task.count(operation, outcome, stored)

    def _count_in(self, task: Any) -> None:
        """Do nothing: what is counted are the operations of the task."""

    def may_contain(self, task_id: Any) -> bool:
        """Return True: the host program may have begun the task for operations with any task id."""
        return True

    @property
    def task_id(self) -> str | None:
        """The id by which operations in other threads find the task, if it has one that is text."""
        task_id = self.shared_attributes.get(names.TASK_ID)
        return task_id if isinstance(task_id, str) else None

    def path_from_root(self) -> tuple[str, ...] | None:
        """Return `events.ancestor` of each span from the root to this task; None if one of them is unknown."""
        return self._path

    def _make_current(self, context: Context) -> None:
        self._position_token = current_position.set(None)
        self._context_token = attach(Context({**context, SPAN_KEY: self, TASK_KEY: self}))
