"""Reads from the span of an operation what its status needs to know: an `Attempt`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

from ckpt_observe.metricstore.operation_status import FAILURE_OUTCOMES, Attempt
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import LARGEST_KEYS, OTHER
from ckpt_observe.span import Span

LimitLabel: TypeAlias = Callable[[str, Any], str]
"""Takes the name of a label and a raw value, and returns a label value from a bounded set."""

SIZES: Final = (("state", names.SIZE_STATE), ("serialized", names.SIZE_SERIALIZED), ("stored", names.SIZE_STORED))
"""Kinds of sizes, and the attributes that have them."""
READING_OPERATIONS: Final = ("load", "restore", "drill")
"""Operations that read a checkpoint."""
_MAX_AMOUNT: Final = 1e300
"""Values from here on are ignored: infinity, and integers too large for a float."""


def amount(value: Any) -> float:
    """Return a positive, finite number as a float, and 0 for any other value. Attributes may come from other programs and have any type."""
    return float(value) if value is not None and isinstance(value, int | float) and 0 < value < _MAX_AMOUNT else 0.0


def to_attempt(span: Span, operation: str, outcome: str, error_class: str, now: float, limit: LimitLabel, *, validated: bool) -> Attempt:
    """Return the attempt of an operation with these labels, which became known at `now`. `validated`: it had a phase `validate`."""
    attributes, get = span.attributes, span.attributes.get
    is_save = operation == "save"
    damaged, altered = get(names.DAMAGED_COUNT), get(names.ALTERED_KEYS)
    was_checked = operation == "verify" or (operation in READING_OPERATIONS and (validated or get(names.COMPARED) is True))
    end = span.end_unix_nano / 1e9
    return Attempt(
        start=span.start_unix_nano / 1e9,
        end=end,
        outcome=outcome,
        verified=was_checked and not damaged and not altered,
        detected=now if outcome == "interrupted" else end,
        error_classes=_error_classes(outcome, error_class, damaged) if damaged or outcome != "ok" else (),
        altered=bool(altered),
        run_id=str(get(names.RUN_ID, get(names.TASK_ID, ""))),
        save_id=_save_id(attributes) if is_save else "",
        interval=amount(get(names.INTERVAL)),
        sizes={kind: size for kind, name in SIZES if (size := amount(get(name)))} if is_save else {},
        peak_memory=amount(get(names.MEMORY_PEAK)),
        key_sizes=_key_sizes(attributes, limit) if is_save and names.KEY_NAMES in attributes else {},
        location=str(get(names.LOCATION, "")) if is_save else "",
    )


def _error_classes(outcome: str, error_class: str, damaged: Any) -> tuple[str, ...]:
    error_classes = (error_class if outcome in FAILURE_OUTCOMES else "", "integrity" if damaged else "")
    return tuple(dict.fromkeys(filter(None, error_classes)))


def _save_id(attributes: dict[str, Any]) -> str:
    """Return the step or id of a save. A path is not enough: programs save to the same path again and again."""
    step = attributes.get(names.STEP)
    if step is not None:
        return str(step)
    id = str(attributes.get(names.ID, ""))
    return "" if os.path.isabs(id) else id


def _key_sizes(attributes: dict[str, Any], limit: LimitLabel) -> dict[str, float]:
    """Return the sizes of the largest keys; the rest of the serialized state is `_other_`.

    Names of keys are limited, because they may be ids that change with every save.
    """
    key_names = _as_sequence(attributes.get(names.KEY_NAMES))
    pairs = islice(zip(key_names, _as_sequence(attributes.get(names.KEY_SIZES)), strict=False), LARGEST_KEYS)
    sizes = {key: size for name, raw in pairs if (size := amount(raw)) and name != OTHER and (key := limit("key", name)) != OTHER}
    rest = amount(attributes.get(names.SIZE_SERIALIZED)) - sum(sizes.values())
    return {**sizes, OTHER: rest} if key_names and rest > 0 else sizes


def _as_sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()
