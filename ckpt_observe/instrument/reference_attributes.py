"""Attributes of the reference core's operations: from the call, from its result, and from the checkpoint that was loaded."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from msgspec import Raw

from ckpt_observe.record import redact, trace_context
from ckpt_observe.record.encoding import encode_attributes
from ckpt_observe.record.operation import Operation
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import LARGEST_KEYS, OTHER

_ALTERED_KEYS: Final = 20
"""How many altered keys a span names at most."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


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


def record_saved(operation: Operation, info: Any) -> None:
    keys, sizes = _largest(info.keys)
    operation.set_trusted(
        {
            names.ID: safe_value(info.id),
            names.SIZE_SERIALIZED: info.serialized_size,
            names.SIZE_STORED: info.stored_size,
            names.DIGEST: info.digest,
            names.STATE_TYPE: safe_value(info.state_type),
            names.STATE_KEYS: len(info.keys),
            names.KEY_NAMES: _key_names(keys) or None,
            names.KEY_SIZES: sizes or None,
            names.STATE_DEPTH: info.depth,
            names.STATE_ITEMS: info.items,
        }
    )


def _largest(keys: dict[str, Any]) -> tuple[tuple[str, ...], list[int]]:
    """Return names and sizes of the largest keys. Their contents are never recorded."""
    if len(keys) <= LARGEST_KEYS:
        return tuple(keys), [key.size for key in keys.values()]
    largest = sorted([(key.size, name) for name, key in keys.items()], reverse=True)[:LARGEST_KEYS]
    return tuple([name for _, name in largest]), [size for size, _ in largest]


@lru_cache(maxsize=256)
def _key_names(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return the keys, with OTHER for those that do not look like names, such as addresses: they may be content. Cached."""
    return tuple(text if _NAME.fullmatch(text := redact.text(key)) else OTHER for key in keys)


def record_count(operation: Operation, checkpoints: Any) -> None:
    operation.set_trusted({names.COUNT: len(checkpoints)})


def record_deleted(operation: Operation, info: Any) -> None:
    operation.set_trusted({names.SIZE_FREED: info and info.stored_size})


def record_pruned(operation: Operation, removed: Any) -> None:
    operation.set_trusted({names.COUNT: len(removed), names.SIZE_FREED: sum(info.stored_size for info in removed)})


def record_verified(operation: Operation, findings: Any) -> None:
    damaged = sum(not finding.good for finding in findings)
    altered = {key for finding in findings for key in finding.altered}
    operation.set_trusted({names.COUNT: len(findings), names.DAMAGED_COUNT: damaged or None, names.ALTERED_KEYS: _keys(altered)})


def _keys(altered: Iterable[str]) -> list[str] | None:
    return list(_key_names(tuple(sorted(altered)[:_ALTERED_KEYS]))) or None


def record_loaded(operation: Operation, restored: Any) -> None:
    """Record which checkpoint was loaded, what is wrong with it, and link to the save that wrote it."""
    info = restored.info
    operation.set_trusted(
        {
            names.ID: safe_value(info.id),
            names.STEP: safe_value(info.step),
            names.FORMAT: safe_value(info.format),
            names.CODEC: safe_value(info.codec),
            names.SIZE_SERIALIZED: info.serialized_size,
            names.SIZE_STORED: info.stored_size,
            names.SOURCE_AGE: round((dt.datetime.now(dt.UTC) - info.created).total_seconds(), 3),
            names.DAMAGED_COUNT: len(restored.skipped) or None,
            names.ALTERED_KEYS: _keys(restored.altered),
        }
    )
    save = trace_context.parse_traceparent(info.context.get("traceparent", ""))
    if save is not None:
        operation.set_trusted({names.SOURCE_TRACE: save.trace, names.SOURCE_SPAN: save.span})
        operation.link(save.trace, save.span)
