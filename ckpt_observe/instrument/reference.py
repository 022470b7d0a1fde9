"""The reference core: operations of `Checkpointer`, phases of `core.steps`, and the link from a restore to its save.

The core knows nothing of this. Its own context seam carries the save's trace context into the checkpoint's header; the check before a
load sees that header, and so the load links back, across processes and days.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec import Raw

from ckpt_observe.instrument.base import Instrumentor
from ckpt_observe.instrument.calls import Observed
from ckpt_observe.instrument.operation import Begin
from ckpt_observe.instrument.targets import Target
from ckpt_observe.record import parents, phase, redact
from ckpt_observe.record.guard import fault
from ckpt_observe.record.line import prepared
from ckpt_observe.record.operation import Operation, current
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import LARGEST_KEYS, OTHER

_CHECKPOINTER: Final = "ckpt_observe.core.checkpointer"
_STEPS: Final = "ckpt_observe.core.steps"
_CONTEXT: Final = "ckpt_observe.core.context"
_NAMED: Final = ("load", "restore", "delete")
"""Operations whose second argument is the checkpoint's id."""
_ALTERED_TOLD: Final = 20
"""Keys that are named."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")


@lru_cache(maxsize=256)
def _known(store: str, location: str, format: str | None, codec: str | None, cipher: str | None) -> Raw:
    """What is the same for every operation of one Checkpointer."""
    known = {names.SYSTEM: "reference", names.STORE: store, names.LOCATION: location}
    return prepared({**known, names.FORMAT: format, names.CODEC: codec or "none", names.CIPHER: cipher})


def _said(value: Any) -> Any:
    """What the host passed as a name: a secret, or a state in the wrong place, does not become telemetry."""
    if value is None or type(value) is int:
        return value
    return _text(value) if type(value) is str else redact.value(value)


_text = lru_cache(maxsize=1024)(redact.text)


def _operation(name: str) -> Begin:
    def begin(checkpointer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Operation | None:
        if not parents.observing():
            return None
        store = checkpointer.store
        pipeline = checkpointer.pipeline
        codec, cipher = pipeline.codec, pipeline.cipher
        return Operation(
            name,
            {
                names.TASK_ID: _said(args[0] if args else kwargs.get("task")),
                names.STEP: _said(kwargs.get("step")),
                names.STATUS: _said(kwargs.get("status")),
                names.ID: _said(kwargs.get("id") or (args[1] if name in _NAMED and len(args) > 1 else None)),
            },
            _known(store.kind, store.location, pipeline.serializer.name, codec and codec.name, cipher and cipher.name),
        )

    return begin


def _committing(batch: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Operation | None:
    if not parents.observing():
        return None
    store = batch._store
    return Operation("save", {names.COUNT: len(batch._drafts)}, _known(store.kind, store.location, None, None, None))


def _saved(operation: Operation, info: Any) -> None:
    keys, sizes = _largest(info.keys)
    operation.note(
        {
            names.ID: _said(info.id),
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


def _counted(operation: Operation, found: Any) -> None:
    operation.note({names.COUNT: len(found)})


def _deleted(operation: Operation, info: Any) -> None:
    operation.note({names.SIZE_FREED: info and info.stored_size})


def _pruned(operation: Operation, removed: Any) -> None:
    operation.note({names.COUNT: len(removed), names.SIZE_FREED: sum(info.stored_size for info in removed)})


def _verified(operation: Operation, findings: Any) -> None:
    damaged = sum(not finding.good for finding in findings)
    altered = {key for finding in findings for key in finding.altered}
    operation.note({names.COUNT: len(findings), names.DAMAGED: damaged or None, names.ALTERED: _keys(altered)})


def _keys(altered: Iterable[str]) -> list[str] | None:
    return list(_key_names(tuple(sorted(altered)[:_ALTERED_TOLD]))) or None


def _loading(operation: Operation, restored: Any) -> None:
    """Facts of the checkpoint that was loaded, what is wrong with it, and the link to the save that made it."""
    info = restored.info
    operation.note(
        {
            names.ID: info.id,
            names.STEP: info.step,
            names.FORMAT: info.format,
            names.CODEC: info.codec,
            names.SIZE_SERIALIZED: info.serialized_size,
            names.SIZE_STORED: info.stored_size,
            names.SOURCE_AGE: round((dt.datetime.now(dt.UTC) - info.created).total_seconds(), 3),
            names.DAMAGED: len(restored.skipped) or None,
            names.ALTERED: _keys(restored.altered),
        }
    )
    save = parents.parse(info.context.get("traceparent", ""))
    if save is not None:
        operation.note({names.SOURCE_TRACE: save.trace, names.SOURCE_SPAN: save.span})
        operation.link(save.trace, save.span)


def _fetched(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Load and restore come through here with the checkpoint that was really used, also when damaged ones were passed over."""
    restored = wrapped(*args, **kwargs)
    operation = current()
    if operation is not None:
        try:
            _loading(operation, restored)
        except Exception as error:
            fault(error)
    return restored


def _surroundings(wrapped: Callable[..., Any], _instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    facts = wrapped(*args, **kwargs)
    operation = current()
    return facts if operation is None else {**facts, "traceparent": operation.traceparent()}


TARGETS: Final = (
    Target(_CHECKPOINTER, "Checkpointer.save", Observed(_operation("save"), fault, _saved)),
    Target(_CHECKPOINTER, "Checkpointer.load", Observed(_operation("load"), fault)),
    Target(_CHECKPOINTER, "Checkpointer.restore", Observed(_operation("restore"), fault)),
    Target(_CHECKPOINTER, "Checkpointer.delete", Observed(_operation("delete"), fault, _deleted)),
    Target(_CHECKPOINTER, "Checkpointer.list", Observed(_operation("list"), fault, _counted)),
    Target(_CHECKPOINTER, "Checkpointer.prune", Observed(_operation("prune"), fault, _pruned)),
    Target(_CHECKPOINTER, "Checkpointer.verify", Observed(_operation("verify"), fault, _verified)),
    Target(_CHECKPOINTER, "Checkpointer._fetch", _fetched),
    Target("ckpt_observe.core.batch", "Batch.commit", Observed(_committing, fault)),
    Target(_STEPS, "serialize", phase.observed("serialize", lambda _, result: (None, len(result)))),
    Target(_STEPS, "compress", phase.observed("compress", lambda args, result: (len(args[1]), len(result)))),
    Target(_STEPS, "encrypt", phase.observed("encrypt", lambda args, result: (len(args[1]), len(result)))),
    Target(_STEPS, "write", phase.observed("write", lambda args, _: (len(args[2]), None))),
    Target(_STEPS, "write_many", phase.observed("write", lambda args, _: (sum(len(blob) for _, blob in args[1]), None))),
    Target(_STEPS, "confirm", phase.observed("validate", lambda args, _: (len(args[2]), None))),
    Target(_STEPS, "read", phase.observed("read", lambda _, result: (None, len(result)))),
    Target(_STEPS, "validate", phase.observed("validate", lambda args, _: (len(args[1]), None))),
    Target(_STEPS, "decrypt", phase.observed("decrypt", lambda args, result: (len(args[1]), len(result)))),
    Target(_STEPS, "decompress", phase.observed("decompress", lambda args, result: (len(args[1]), len(result)))),
    Target(_STEPS, "deserialize", phase.observed("deserialize", lambda args, _: (len(args[1]), None))),
    Target(_STEPS, "apply", phase.observed("apply", lambda _args, _: (None, None))),
    Target(_CONTEXT, "gather", _surroundings),
)


class ReferenceInstrumentor(Instrumentor):
    """Observes `ckpt_observe.core`."""

    name = "reference"
    library = "ckpt_observe.core"

    def targets(self) -> Sequence[Target]:
        return TARGETS
