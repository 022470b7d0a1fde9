"""Compares two checkpoints, of one task or of two: keys and sizes from the headers alone, values only if asked for."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.model import CheckpointInfo


class Missing(enum.Enum):
    """Stands for the value of a key that a checkpoint does not have, because None can be a value."""

    MISSING = "missing"


MISSING = Missing.MISSING


class Difference(msgspec.Struct, frozen=True):
    """The differences between two checkpoints, by top-level key. If one header lists no keys, all fields after `new` are empty."""

    old: CheckpointInfo
    new: CheckpointInfo
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    growth: dict[str, int]
    """Bytes by which the value of each key grew; negative if it shrank. A key counts 0 bytes where it is missing."""

    @property
    def changed_ratio(self) -> float:
        """Share of the new state's bytes in added or changed keys, 0 to 1. If a header has no keys: 1 if the digests differ, else 0."""
        total = sum(key.size for key in self.new.keys.values())
        changed = sum(self.new.keys[name].size for name in self.added + self.changed)
        return changed / total if total and self.old.keys else float(self.old.digest != self.new.digest)


def compare(old: CheckpointInfo, new: CheckpointInfo) -> Difference:
    """Compare two headers. A key counts as changed if it has no digest (encrypted checkpoints), or if the formats differ."""
    if not old.keys or not new.keys:  # one header does not list its keys
        return Difference(old, new, (), (), (), (), {})
    both = [name for name in new.keys if name in old.keys]
    same = {name for name in both if old.format == new.format and _same(old, new, name)}
    return Difference(
        old,
        new,
        added=tuple(name for name in new.keys if name not in old.keys),
        removed=tuple(name for name in old.keys if name not in new.keys),
        changed=tuple(name for name in both if name not in same),
        unchanged=tuple(name for name in both if name in same),
        growth={name: _size(new, name) - _size(old, name) for name in {**old.keys, **new.keys}},
    )


def values(checkpointer: Checkpointer, difference: Difference, new_in: Checkpointer | None = None) -> dict[str, tuple[Any, Any]]:
    """Return old and new value of each key that differs; MISSING if a checkpoint does not have the key.

    `new_in` reads the new checkpoint; None if it is in the same store as the old one.
    """
    old = checkpointer.open(difference.old.task, difference.old.id).get_many(difference.changed + difference.removed)
    new = (new_in or checkpointer).open(difference.new.task, difference.new.id).get_many(difference.changed + difference.added)
    return {name: (old.get(name, MISSING), new.get(name, MISSING)) for name in {**old, **new}}


def _same(old: CheckpointInfo, new: CheckpointInfo, name: str) -> bool:
    return bool(new.keys[name].digest) and old.keys[name].digest == new.keys[name].digest


def _size(info: CheckpointInfo, name: str) -> int:
    return info.keys[name].size if name in info.keys else 0
