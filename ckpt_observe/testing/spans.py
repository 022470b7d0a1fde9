"""Spans for tests: made in one line, with ids that count and a clock that ticks, and read as an outline."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.spans import OPERATION_PREFIX, TASK_PREFIX
from ckpt_observe.span import Span
from ckpt_observe.tracestore.tree import walk

START_UNIX_NANO = 1_700_000_000_000_000_000
MILLISECOND = 1_000_000


def make_span(number: int, name: str, *, trace: int = 1, parent: int = 0, start: int = 0, milliseconds: int = 1, **fields: Any) -> Span:
    """A span whose id is `number` and which begins `start + number` milliseconds after the tests' epoch."""
    begin = START_UNIX_NANO + (start + number) * MILLISECOND
    given: dict[str, Any] = {"status": "ok", "attributes": {}, "end_unix_nano": begin + milliseconds * MILLISECOND, **fields}
    return Span(
        trace_id=f"{trace:032x}",
        span_id=f"{number:016x}",
        parent_span_id=f"{parent:016x}" if parent else "",
        name=name,
        start_unix_nano=begin,
        **given,
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
    """A task, its operations and their phases, in the order in which they end: the task last.

    `outcome` is that of the last operation.
    """
    common: dict[str, Any] = {"trace": trace, "start": start, "resource": resource or {"service.name": "test"}}
    who = {names.TASK_NAME: task, names.TASK_ID: f"{task}-{trace}"}
    size = 1 + len(phases)
    spans = []
    for step, operation in enumerate(operations, 1):
        own = 2 + size * (step - 1)
        for number, phase in enumerate(phases, own + 1):
            facts: dict[str, Any] = {names.PHASE: phase, names.OUTCOME: "ok"}
            spans.append(make_span(number, OPERATION_PREFIX + phase, parent=own, attributes=facts, **common))
        ended = outcome if step == len(operations) else "ok"
        facts = {names.OPERATION: operation, names.OUTCOME: ended, names.STEP: step, **who}
        status = "error" if ended in ("error", "interrupted") else "ok"
        spans.append(make_span(own, OPERATION_PREFIX + operation, parent=1, milliseconds=size, status=status, attributes=facts, **common))
    facts = {names.OUTCOME: "ok", **who}
    spans.append(make_span(1, TASK_PREFIX + task, milliseconds=2 + size * len(operations), attributes=facts, **common))
    return spans


def outline(spans: Iterable[Span]) -> str:
    """The tree of names, two spaces a level: what a test compares with."""
    return "\n".join("  " * node.depth + node.span.name for node in walk(spans))
