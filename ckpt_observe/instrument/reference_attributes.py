"""Attributes of the reference core's operations: from the call, from its result, and from the checkpoint that was loaded."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from msgspec import Raw

from ckpt_observe.instrument.saver_attributes import altered_keys, size_attributes
from ckpt_observe.record import redact, trace_context
from ckpt_observe.record.encoding import encode_attributes
from ckpt_observe.record.operation import Operation
from ckpt_observe.semconv import attributes as names


@lru_cache(maxsize=256)
def shared_attributes(store: str, location: str, format: str | None, codec: str | None, cipher: str | None) -> Raw:
    """Return the attributes that all operations of one Checkpointer share, encoded once."""
    attributes = {names.SYSTEM: "reference", names.STORE: store, names.LOCATION: location}
    return encode_attributes({**attributes, names.FORMAT: format, names.CODEC: codec or "none", names.CIPHER: cipher})


def safe_value(value: Any) -> Any:
    """Return a name or step for `set_trusted`, redacted: it may contain a secret, or be a state in the wrong place."""
    if value is None or type(value) is int:
        return value
    return redact.name(value) if type(value) is str else redact.value(value)


def _if_recorded(record: Callable[[Operation, Any], None]) -> Callable[[Operation, Any], None]:
    """Return a function that does nothing for an operation that is not recorded: the sizes of 200 keys take 30 µs."""

    @wraps(record)
    def record_if_recorded(operation: Operation, result: Any) -> None:
        if operation.open_page:
            record(operation, result)

    return record_if_recorded


@_if_recorded
def record_saved(operation: Operation, info: Any) -> None:
    operation.set_trusted(
        {
            names.ID: safe_value(info.id),
            names.SIZE_SERIALIZED: info.serialized_size,
            names.SIZE_STORED: info.stored_size,
            names.SIZE_OVERHEAD: info.header_size,
            names.DIGEST: info.digest,
            names.STATE_TYPE: safe_value(info.state_type),
            names.STATE_KEYS: len(info.keys),
            **size_attributes({name: key.size for name, key in info.keys.items()}),
            names.STATE_DEPTH: info.depth,
            names.STATE_ITEMS: info.items,
        }
    )


@_if_recorded
def record_count(operation: Operation, checkpoints: Any) -> None:
    operation.set_trusted({names.COUNT: len(checkpoints)})


@_if_recorded
def record_deleted(operation: Operation, info: Any) -> None:
    operation.set_trusted({names.SIZE_FREED: info and info.stored_size})


@_if_recorded
def record_pruned(operation: Operation, removed: Any) -> None:
    operation.set_trusted({names.COUNT: len(removed), names.SIZE_FREED: sum(info.stored_size for info in removed)})


@_if_recorded
def record_verified(operation: Operation, findings: Any) -> None:
    damaged = sum(not finding.good for finding in findings)
    altered = {key for finding in findings for key in finding.altered}
    operation.set_trusted({names.COUNT: len(findings), names.DAMAGED_COUNT: damaged or None, names.ALTERED_KEYS: altered_keys(altered)})


@_if_recorded
def record_loaded(operation: Operation, restored: Any) -> None:
    """Record which checkpoint was loaded, what is wrong with it, and link to the save that wrote it, if that was sampled."""
    info = restored.info
    operation.set_trusted(
        {
            names.ID: safe_value(info.id),
            names.STEP: safe_value(info.step),
            names.FORMAT: safe_value(info.format),
            names.CODEC: safe_value(info.codec),
            names.SIZE_SERIALIZED: info.serialized_size,
            names.SIZE_STORED: info.stored_size,
            names.SIZE_OVERHEAD: info.header_size,
            names.SOURCE_AGE: round((dt.datetime.now(dt.UTC) - info.created).total_seconds(), 3),
            names.DAMAGED_COUNT: len(restored.skipped) or None,
            names.ALTERED_KEYS: altered_keys(restored.altered),
        }
    )
    save = trace_context.parse_traceparent(info.context.get("traceparent", ""))
    if save is not None and save.sampled:  # else no backend has its span
        operation.set_trusted({names.SOURCE_TRACE: save.trace, names.SOURCE_SPAN: save.span})
        operation.link(save.trace, save.span)
