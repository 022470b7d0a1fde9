"""What differs between two checkpoints, of one run or of two: from their headers alone, values on demand."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.model import CheckpointInfo


class Missing(enum.Enum):
    """No value: None is one."""

    MISSING = "missing"


MISSING = Missing.MISSING


class Difference(msgspec.Struct, frozen=True):
    """From `old` to `new`."""

    old: CheckpointInfo
    new: CheckpointInfo
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    unchanged: tuple[str, ...]
    growth: dict[str, int]
    """Bytes that each key grew by; negative where it shrank."""

    @property
    def changed_ratio(self) -> float:
        """Share of the new state's bytes that are new or changed; of a state without keys all or nothing, by the digest of the whole."""
        total = sum(key.size for key in self.new.keys.values())
        fresh = sum(self.new.keys[name].size for name in self.added + self.changed)
        return fresh / total if total else float(self.old.digest != self.new.digest)


def compare(old: CheckpointInfo, new: CheckpointInfo) -> Difference:
    """Keys and sizes, from the headers. Keys without a digest (encrypted ones) count as changed."""
    if not old.keys or not new.keys:  # one of them lists none: nobody knows which are in it
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
    """Old and new value of each key that differs, MISSING where there is none; `new_in` is where the new one is, if elsewhere."""
    old = checkpointer.open(difference.old.task, difference.old.id).some(difference.changed + difference.removed)
    new = (new_in or checkpointer).open(difference.new.task, difference.new.id).some(difference.changed + difference.added)
    return {name: (old.get(name, MISSING), new.get(name, MISSING)) for name in {**old, **new}}


def _same(old: CheckpointInfo, new: CheckpointInfo, name: str) -> bool:
    return bool(new.keys[name].digest) and old.keys[name].digest == new.keys[name].digest


def _size(info: CheckpointInfo, name: str) -> int:
    return info.keys[name].size if name in info.keys else 0
