"""Operations for tests, as queries return them: created in one line, with sequential ids and times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ckpt_observe.query import RUNNING, ObservedOperation, ObservedPhase
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.spans import EVENT_EXCEPTION, EXCEPTION_MESSAGE, EXCEPTION_TYPE
from ckpt_observe.span import SpanEvent
from ckpt_observe.testing.spans import START_UNIX_NANO

SECOND = 1_000_000_000


def make_operation(
    number: int = 1,
    name: str = "save",
    *,
    outcome: str = "ok",
    start: float = 0.0,
    phases: Mapping[str, float] | None = None,
    exception: str = "",
    task: str | None = "agent",
    attributes: Mapping[str, Any] | None = None,
    resource: Mapping[str, Any] | None = None,
) -> ObservedOperation:
    """Return an operation with the id `number` that begins `start` seconds after START_UNIX_NANO.

    `phases` are its phases and their seconds, one after the other. A running operation is in the last one.
    """
    begin = START_UNIX_NANO + int(start * SECOND)
    is_running = outcome == RUNNING
    observed_phases, moment = [], begin
    for index, (phase, seconds) in enumerate((phases or {"write": 0.1}).items()):
        is_last = index == len(phases or {"write": 0.1}) - 1
        end = moment + int(seconds * SECOND)
        observed_phases.append(
            ObservedPhase(
                name=phase,
                span_id=f"{number:08x}{index:08x}",
                parent_span_id=f"{number:016x}",
                start_unix_nano=moment,
                end_unix_nano=None if is_running and is_last else end,
                outcome=RUNNING if is_running and is_last else "ok",
            )
        )
        moment = end
    events = (SpanEvent(EVENT_EXCEPTION, moment, {EXCEPTION_TYPE: "OSError", EXCEPTION_MESSAGE: exception}),) if exception else ()
    values = {names.OPERATION: name, names.OUTCOME: outcome, names.TASK_NAME: task, names.TASK_ID: "run-1" if task else None}
    return ObservedOperation(
        kind="operation",
        name=name,
        trace_id=f"{number:032x}",
        span_id=f"{number:016x}",
        parent_span_id="",
        start_unix_nano=begin,
        end_unix_nano=None if is_running else moment,
        outcome=outcome,
        attributes={key: value for key, value in {**values, **(attributes or {})}.items() if value is not None},
        events=events,
        resource={"service.name": "test", "process.pid": 42, "host.name": "box", **(resource or {})},
        phases=tuple(observed_phases),
    )
