"""Spans grouped by operation: an operation, task or other span, with the phases of the operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span


class OperationGroup(NamedTuple):
    """An operation, task or other span, and its phases."""

    span: Span
    phases: list[Span]


def group_by_operation(spans: Iterable[Span]) -> list[OperationGroup]:
    """Return the spans as operations with their phases, in the order of the operations.

    A repeated span counts once, in its last version. A phase belongs to the operation above it, also if other phases are between. One
    without its operation is a group of its own: the other part of a batch has the operation.
    """
    by_id = {(span.trace_id, span.span_id): span for span in spans}
    groups: dict[tuple[str, str], OperationGroup] = {}
    phases = []
    for key, span in by_id.items():
        if names.PHASE in span.attributes:
            phases.append(span)
        else:
            groups[key] = OperationGroup(span, [])
    for phase in phases:
        key, outer_phases = (phase.trace_id, phase.parent_span_id), {phase.span_id}
        while key not in groups and key in by_id and key[1] not in outer_phases:  # damaged spans may be each other's parents
            outer_phases.add(key[1])
            key = (phase.trace_id, by_id[key].parent_span_id)
        group = groups.get(key)
        if group is not None and names.PHASE not in group.span.attributes:
            group.phases.append(phase)
        else:
            groups[phase.trace_id, phase.span_id] = OperationGroup(phase, [])
    return list(groups.values())
