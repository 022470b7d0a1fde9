"""What a checkpoint contains: the result of every reader, whatever the format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import msgspec

Path: TypeAlias = tuple[str, ...]
"""The names of an entry and of the entries that contain it, outermost first."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key, tensor, channel, file, task or checkpoint."""

    name: str
    type: str
    """What it is: the name of a Python type (`dict`, `torch.Tensor`), or a word such as `channel`, `file` or `checkpoint`."""
    size: int
    """Bytes that it takes in the format, with its children."""
    dtype: str = ""
    """Type of the elements in the words of the format, such as `float32`, `F32` or `<f4`; empty if it is no array."""
    shape: tuple[int, ...] | None = None
    items: int | None = None
    """Number of items of a container, before `depth` cuts its children off; None if it is no container."""
    digest: str = ""
    """Digest of the content as `algorithm:hex`, if the format has one or reading it is cheap. Equal digests mean equal content."""
    details: dict[str, str | int] = {}
    """Facts that only some formats have, such as the `step` of a checkpoint or the number of `checkpoints` that contain a channel."""
    children: tuple[Entry, ...] = ()
    """The largest first, to the requested depth. Their sizes can add up to less than `size`: the rest is structure."""


class Breakdown(msgspec.Struct, frozen=True):
    """The same bytes in other groups: a database by thread, step or checkpoint instead of by channel."""

    by: str
    entries: tuple[Entry, ...]
    """The largest first. Checkpoints: the newest first."""
    other_size: int
    """Bytes that belong to no entry. The sizes of the entries and this add up to the size of the contents."""


class Contents(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is in a file, directory, database or store. Nothing of it was executed, and no class of it was imported."""

    format: str
    """Name of the format, as in the table of formats."""
    location: str
    """Path or URL, without credentials."""
    size: int
    """Bytes that the entries and `other_size` add up to."""
    entries: tuple[Entry, ...]
    """Keys, the largest first. For a database or store: the keys (channels) of all selected checkpoints together."""
    other_size: int
    """Bytes that belong to no entry: headers, padding, structure."""
    stored_size: int | None = None
    """Bytes of the file, directory or database, with everything else that is in it; None if unknown."""
    breakdowns: tuple[Breakdown, ...] = ()
    """For databases and stores: by `task` (`thread`), `step` and `checkpoint`."""
    repeated_size: int | None = None
    """Bytes of values that the previous checkpoint of the same task already contains unchanged; None if it was not measured."""
    prunable_size: int | None = None
    """Bytes that would be free if only the newest checkpoint of each task and namespace was left; None if it was not measured."""
    imports: tuple[str, ...] = ()
    """What loading would import and call, as `module.name`, sorted. Only pickles have any. Loading one of an attacker runs his code."""
    warnings: tuple[str, ...] = ()
    """What the user should know before loading this, such as imports that can run commands."""
    metadata: dict[str, Any] = {}
    """What the format says about itself or the program stored with it."""
    version: str = ""
    """Version of the format or of the library that wrote it."""

    def breakdown(self, by: str) -> Breakdown | None:
        """Return the breakdown with this name, or None."""
        return next((breakdown for breakdown in self.breakdowns if breakdown.by == by), None)


def largest_first(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return entries in the order of every list of this package: by size, then by name."""
    return tuple(sorted(entries, key=lambda entry: (-entry.size, entry.name)))


def walk(entries: Iterable[Entry], parent: Path = ()) -> Iterator[tuple[Path, Entry]]:
    """Yield every entry with its path, parents before children."""
    for entry in entries:
        path = (*parent, entry.name)
        yield path, entry
        yield from walk(entry.children, path)
