"""Operations that are running now, read from the pages of live processes."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.journal.live_operations import read_live_operations
from ckpt_observe.query.results import RUNNING
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
