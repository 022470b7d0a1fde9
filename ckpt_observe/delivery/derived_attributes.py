"""Attributes of an operation that follow from others and from its phases: they need not be computed on the host program's thread."""

from __future__ import annotations

from typing import Any, Final, TypeGuard

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span

_PLAIN_AND_PACKED: Final = {
    "compress": (names.PHASE_BYTES_IN, names.PHASE_BYTES_OUT),
    "decompress": (names.PHASE_BYTES_OUT, names.PHASE_BYTES_IN),
}
"""Where the phases of a codec have the bytes that are not compressed, and those that are."""


def add_derived_attributes(operation: Span, phases: list[Span]) -> None:
    """Add the time until an async save was durable, compression ratio and throughput, unless the library reported them itself."""
    attributes = operation.attributes
    if names.ASYNC_RELEASED in attributes and attributes[names.OUTCOME] == "ok":
        attributes.setdefault(names.ASYNC_DURABLE, operation.seconds)
    stored = attributes.get(names.SIZE_STORED)
    if _is_size(stored) and operation.seconds > 0 and names.THROUGHPUT not in attributes:
        attributes[names.THROUGHPUT] = round(stored / operation.seconds, 1)
    if names.RATIO not in attributes and (ratio := _compression_ratio(attributes, phases)) is not None:
        attributes[names.RATIO] = round(ratio, 3)


def _compression_ratio(attributes: dict[str, Any], phases: list[Span]) -> float | None:
    """Return what the codec achieved, from the bytes of its phases; if they have none, from the sizes without the container."""
    codec_phases = [phase.attributes for phase in phases if phase.attributes[names.PHASE] in _PLAIN_AND_PACKED]
    pairs = [[phase.get(name) for name in _PLAIN_AND_PACKED[phase[names.PHASE]]] for phase in codec_phases]
    complete = [(plain, packed) for plain, packed in pairs if _is_size(plain) and _is_size(packed)]
    if complete:
        return sum(plain for plain, _ in complete) / sum(packed for _, packed in complete)
    if not codec_phases and attributes.get(names.CODEC, "none") == "none":
        return None
    serialized, stored, overhead = (attributes.get(name) for name in (names.SIZE_SERIALIZED, names.SIZE_STORED, names.SIZE_OVERHEAD))
    if not _is_size(serialized) or not _is_size(stored):
        return None
    packed = stored - (overhead if _is_size(overhead) else 0)
    return serialized / packed if packed > 0 else None


def _is_size(value: Any) -> TypeGuard[int | float]:
    """User code may set anything; the operation is delivered all the same."""
    return isinstance(value, int | float) and value > 0
