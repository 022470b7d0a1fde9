"""The context of operations as plain data, which travels to other processes.

It consists of builtin types only, so that a process can read it that does not have this package. Besides the parent span it contains the
attributes of the task: metrics need its name, and a span alone would not have it.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from opentelemetry.context import Context

from ckpt_observe.record.operation import Operation
from ckpt_observe.record.running_tasks import TaskReference
from ckpt_observe.record.trace_context import SPAN_KEY, TASK_KEY, CarriedSpan, Parent, find_parent, parent_span

PackedContext: TypeAlias = dict[str, Any]
_PARENT: Final = "parent"
_TASK: Final = "task"


def pack(context: Context) -> PackedContext | None:
    """Return the parent span and the task of operations in this context as plain data; None if there is no parent."""
    span = parent_span(context)
    if isinstance(span, Operation):
        trace_id, span_id = span.ids()
        parent = Parent(trace_id, span_id, span.sampled, span.path_from_root(), trace_state=span.trace_state) if trace_id else None
    else:
        parent = find_parent(span)
    if parent is None:
        return None
    task: Any = context.get(TASK_KEY)
    return {
        _PARENT: (parent.trace, parent.span, parent.sampled, parent.path, dict(parent.attributes), parent.trace_state),
        _TASK: None if task is None else dict(task.shared_attributes),
    }


def unpack(packed: PackedContext) -> Context:
    """Return the context that `pack` returned as data, in this or another process."""
    context: dict[str, Any] = {SPAN_KEY: CarriedSpan(Parent(*packed[_PARENT]))}
    if packed[_TASK] is not None:
        context[TASK_KEY] = TaskReference(packed[_TASK])
    return Context(context)
