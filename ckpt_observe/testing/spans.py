"""Spans for tests: created in one line, with sequential ids and times, and compared as an outline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.spans import OPERATION_PREFIX, TASK_PREFIX
from ckpt_observe.span import Span
from ckpt_observe.tracestore.tree import walk

MILLISECOND = 1_000_000
_DAY = 86_400_000 * MILLISECOND
START_UNIX_NANO = (time.time_ns() // _DAY - 2) * _DAY
"""Midnight, two to three days ago: stores remove what is too old."""


def make_span(number: int, name: str, *, trace: int = 1, parent: int = 0, start: int = 0, milliseconds: int = 1, **fields: Any) -> Span:
    """Return a span with the id `number` that begins `start + number` milliseconds after START_UNIX_NANO and lasts `milliseconds`.

    A `parent` of 0 means none. `fields` are further fields of Span.
    """
    begin = START_UNIX_NANO + (start + number) * MILLISECOND
    defaults: dict[str, Any] = {"status": "ok", "attributes": {}, "end_unix_nano": begin + milliseconds * MILLISECOND, **fields}
    return Span(
        trace_id=f"{trace:032x}",
        span_id=f"{number:016x}",
        parent_span_id=f"{parent:016x}" if parent else "",
        name=name,
        start_unix_nano=begin,
        **defaults,
    )


def make_tree(
    trace: int = 1,
    *,
    task: str = "demo",
    operations: Sequence[str] = ("save",),
    phases: Sequence[str] = ("serialize", "write"),
    outcome: str = "ok",
    start: int = 0,
    resource: dict[str, Any] | None = None,
) -> list[Span]:
    """Return the spans of a task, its operations and their phases, in the order in which they end: the task last.

    `outcome` is the outcome of the last operation; all others are `ok`.
    """
    common: dict[str, Any] = {"trace": trace, "start": start, "resource": resource or {"service.name": "test"}}
    task_attributes = {names.TASK_NAME: task, names.TASK_ID: f"{task}-{trace}"}
    size = 1 + len(phases)
    spans = []
    for step, operation in enumerate(operations, 1):
        operation_number = 2 + size * (step - 1)
        for number, phase in enumerate(phases, operation_number + 1):
            attributes: dict[str, Any] = {names.PHASE: phase, names.OUTCOME: "ok"}
            spans.append(make_span(number, OPERATION_PREFIX + phase, parent=operation_number, attributes=attributes, **common))
        last_outcome = outcome if step == len(operations) else "ok"
        attributes = {names.OPERATION: operation, names.OUTCOME: last_outcome, names.STEP: step, **task_attributes}
        status = "error" if last_outcome in ("error", "interrupted") else "ok"
        spans.append(
            make_span(
                operation_number, OPERATION_PREFIX + operation, parent=1, milliseconds=size, status=status, attributes=attributes, **common
            )
        )
    attributes = {names.OUTCOME: "ok", **task_attributes}
    spans.append(make_span(1, TASK_PREFIX + task, milliseconds=2 + size * len(operations), attributes=attributes, **common))
    return spans


def outline(spans: Iterable[Span]) -> str:
    """Return the tree of span names, indented by two spaces per level."""
    return "\n".join("  " * node.depth + node.span.name for node in walk(spans))
