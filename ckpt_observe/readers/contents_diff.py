"""Compares the contents of two checkpoints, of one format or of two."""

from __future__ import annotations

from typing import Literal

import msgspec

from ckpt_observe.readers.contents import Contents, Entry, Path, walk


class EntryChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry that only one side has, or that differs."""

    path: Path
    kind: Literal["added", "removed", "changed"]
    old: Entry | None = None
    new: Entry | None = None
    differs: tuple[str, ...] = ()
    """The fields that differ: `type`, `dtype`, `shape`, `items`, `size`, `digest`."""

    @property
    def growth(self) -> int:
        """Bytes by which the entry grew; negative if it shrank."""
        return (self.new.size if self.new else 0) - (self.old.size if self.old else 0)


class ContentsDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between two contents, entry by entry. A parent is listed only if it differs by itself, not for its children."""

    changes: tuple[EntryChange, ...]
    """The largest change of size first; among equal ones the largest entry."""
    unchanged: tuple[Path, ...]
    """Entries with the same digest on both sides."""
    unclear: tuple[Path, ...]
    """Entries that look the same, but have no digest: their values may differ."""


_FIELDS = ("type", "dtype", "shape", "items", "size", "digest")


def diff(old: Contents, new: Contents) -> ContentsDiff:
    """Return what was added, removed and changed from `old` to `new`. Read both with the same depth."""
    before, after = dict(walk(old.entries)), dict(walk(new.entries))
    changes: list[EntryChange] = []
    unchanged: list[Path] = []
    unclear: list[Path] = []
    for path in before.keys() | after.keys():
        first, second = before.get(path), after.get(path)
        if first is None or second is None:
            changes.append(EntryChange(path=path, kind="added" if first is None else "removed", old=first, new=second))
        elif differs := _differing_fields(first, second):
            changes.append(EntryChange(path=path, kind="changed", old=first, new=second, differs=differs))
        elif first.digest and second.digest:
            unchanged.append(path)
        elif not first.children:
            unclear.append(path)
    changes.sort(key=lambda change: (-abs(change.growth), -_largest_size(change), change.path))
    return ContentsDiff(changes=tuple(changes), unchanged=tuple(sorted(unchanged)), unclear=tuple(sorted(unclear)))


def _differing_fields(old: Entry, new: Entry) -> tuple[str, ...]:
    differing = [name for name in _FIELDS if getattr(old, name) != getattr(new, name)]
    if "digest" in differing and not (old.digest and new.digest and _algorithm(old) == _algorithm(new)):  # they cannot be compared
        differing.remove("digest")
    if old.children and new.children and differing == ["size"]:  # its children say which of them grew
        return ()
    return tuple(differing)


def _algorithm(entry: Entry) -> str:
    return entry.digest.rpartition(":")[0]


def _largest_size(change: EntryChange) -> int:
    return max(entry.size for entry in (change.old, change.new) if entry is not None)
