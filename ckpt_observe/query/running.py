"""Operations that are running now, read from the pages of live processes."""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.journal.live_operations import read_live_operations
from ckpt_observe.query.results import RUNNING
from ckpt_observe.semconv.spans import TASK_PREFIX
from ckpt_observe.tracestore.operation_groups import OperationGroup

_encode = msgspec.json.Encoder().encode


def read_running(state: Path) -> list[OperationGroup]:
    """Return the running operations and tasks of all processes, by start. Their spans end now, with the outcome `running`."""
    groups = []
    for about, operation in read_live_operations(state):
        spans = assemble(_encode(operation.stop_at(time.time_ns(), RUNNING)), about.resource, about.attributes)
        if spans:
            groups.append(OperationGroup(spans[-1], spans[:-1]))
    return sorted(groups, key=lambda group: group.span.start_unix_nano)


def find_running_tasks(state: Path, trace_ids: AbstractSet[str]) -> dict[str, str]:
    """Return the name of the root of each of these traces in which a task is running, by trace id; that of the task if it is not known."""
    roots: dict[str, str] = {}
    for span in (group.span for group in read_running(state)):
        if span.trace_id in trace_ids and span.name.startswith(TASK_PREFIX):
            ancestors = () if span.ancestors is msgspec.UNSET else span.ancestors
            roots.setdefault(span.trace_id, ancestors[0][1] if ancestors else span.name)
    return roots
