"""What an operation of the reference core tells: from the call, from what it gave, from the checkpoint that came back."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from msgspec import Raw

from ckpt_observe.record import parents, redact
from ckpt_observe.record.line import prepared
from ckpt_observe.record.operation import Operation
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import LARGEST_KEYS, OTHER

_ALTERED_TOLD: Final = 20
"""Keys that are named."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


@lru_cache(maxsize=256)
def known(store: str, location: str, format: str | None, codec: str | None, cipher: str | None) -> Raw:
    """What is the same for every operation of one Checkpointer."""
    same = {names.SYSTEM: "reference", names.STORE: store, names.LOCATION: location}
    return prepared({**same, names.FORMAT: format, names.CODEC: codec or "none", names.CIPHER: cipher})


def said(value: Any) -> Any:
    """What the host passed as a name: a secret, or a state in the wrong place, does not become telemetry."""
    if value is None or type(value) is int:
        return value
    return _text(value) if type(value) is str else redact.value(value)


_text = lru_cache(maxsize=1024)(redact.text)


def saved(operation: Operation, info: Any) -> None:
    keys, sizes = _largest(info.keys)
    operation.note(
        {
            names.ID: said(info.id),
            names.SIZE_SERIALIZED: info.serialized_size,
            names.SIZE_STORED: info.stored_size,
            names.DIGEST: info.digest,
            names.STATE_TYPE: info.state_type,
            names.STATE_KEYS: len(info.keys),
            names.KEY_NAMES: _key_names(keys) or None,
            names.KEY_SIZES: sizes or None,
            names.STATE_DEPTH: info.depth,
            names.STATE_ITEMS: info.items,
        }
    )


def _largest(keys: dict[str, Any]) -> tuple[tuple[str, ...], list[int]]:
    """Names and sizes of the keys worth telling apart. What they hold is the program's own."""
    if len(keys) <= LARGEST_KEYS:
        return tuple(keys), [key.size for key in keys.values()]
    largest = sorted([(key.size, name) for name, key in keys.items()], reverse=True)[:LARGEST_KEYS]
    return tuple([name for _, name in largest]), [size for size, _ in largest]


@lru_cache(maxsize=256)
def _key_names(given: tuple[str, ...]) -> tuple[str, ...]:
    """A state has the same keys at each save, so they are looked at once. A key that is no name, such as an address, may be content."""
    return tuple(text if _NAME.fullmatch(text := redact.text(key)) else OTHER for key in given)


def counted(operation: Operation, found: Any) -> None:
    operation.note({names.COUNT: len(found)})


def deleted(operation: Operation, info: Any) -> None:
    operation.note({names.SIZE_FREED: info and info.stored_size})


def pruned(operation: Operation, removed: Any) -> None:
    operation.note({names.COUNT: len(removed), names.SIZE_FREED: sum(info.stored_size for info in removed)})


def verified(operation: Operation, findings: Any) -> None:
    damaged = sum(not finding.good for finding in findings)
    altered = {key for finding in findings for key in finding.altered}
    operation.note({names.COUNT: len(findings), names.DAMAGED_COUNT: damaged or None, names.ALTERED_KEYS: _keys(altered)})


def _keys(altered: Iterable[str]) -> list[str] | None:
    return list(_key_names(tuple(sorted(altered)[:_ALTERED_TOLD]))) or None


def loading(operation: Operation, restored: Any) -> None:
    """Facts of the checkpoint that was loaded, what is wrong with it, and the link to the save that made it."""
    info = restored.info
    operation.note(
        {
            names.ID: said(info.id),
            names.STEP: info.step,
            names.FORMAT: info.format,
            names.CODEC: info.codec,
            names.SIZE_SERIALIZED: info.serialized_size,
            names.SIZE_STORED: info.stored_size,
            names.SOURCE_AGE: round((dt.datetime.now(dt.UTC) - info.created).total_seconds(), 3),
            names.DAMAGED_COUNT: len(restored.skipped) or None,
            names.ALTERED_KEYS: _keys(restored.altered),
        }
    )
    save = parents.parse(info.context.get("traceparent", ""))
    if save is not None:
        operation.note({names.SOURCE_TRACE: save.trace, names.SOURCE_SPAN: save.span})
        operation.link(save.trace, save.span)
