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


def is_phase(span: Span) -> bool:
    """Return whether a span is a phase of an operation."""
    return isinstance(span.attributes.get(names.PHASE), str)


def group_by_operation(spans: Iterable[Span]) -> list[OperationGroup]:
    """Return the spans as operations with their phases.

    A repeated span counts once, in its last version. A phase belongs to the operation above it, also if other phases are between. One
    without its operation is a group of its own: the other part of a batch has the operation.
    """
    groups: dict[tuple[str, str], OperationGroup] = {}
    phases: list[Span] = []
    strays: list[Span] = []
    for span in spans:
        if is_phase(span):
            phases.append(span)
            continue
        own_phases: list[Span] = []  # usually all those that come directly before it
        for phase in phases:
            is_own = phase.parent_span_id == span.span_id and phase.trace_id == span.trace_id
            (own_phases if is_own else strays).append(phase)
        groups[span.trace_id, span.span_id] = OperationGroup(span, own_phases)
        phases = []
    strays += phases
    if strays or any(len(group.phases) != len({phase.span_id for phase in group.phases}) for group in groups.values()):
        return _group_strays(groups, strays)
    return list(groups.values())


def _group_strays(groups: dict[tuple[str, str], OperationGroup], strays: list[Span]) -> list[OperationGroup]:
    """Return groups with further phases, wherever their operations are."""
    by_id = {(span.trace_id, span.span_id): span for group in groups.values() for span in group.phases}
    by_id |= {(span.trace_id, span.span_id): span for span in strays}
    complete = {key: OperationGroup(group.span, []) for key, group in groups.items()}
    for phase in by_id.values():
        key, outer_phases = (phase.trace_id, phase.parent_span_id), {phase.span_id}
        while key not in groups and key in by_id and key[1] not in outer_phases:  # damaged spans may be each other's parents
            outer_phases.add(key[1])
            key = (phase.trace_id, by_id[key].parent_span_id)
        if key in groups:
            complete[key].phases.append(phase)
        else:
            complete[phase.trace_id, phase.span_id] = OperationGroup(phase, [])
    return list(complete.values())
