"""Directories of Orbax: the tree of arrays from `_METADATA`, and the files."""

from __future__ import annotations

import os
from collections import Counter
from typing import Annotated, Any, Final

import msgspec

from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.contents import Contents, Entry, largest_first
from ckpt_observe.readers.directory_files import by_file, file_sizes
from ckpt_observe.readers.source import Limits, check_json, malformed, open_source

METADATA: Final = "_METADATA"
CHECKPOINT: Final = "_CHECKPOINT_METADATA"
_ONE_DATABASE: Final = "all arrays are in one OCDBT database, which does not say how many bytes each has"
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Value(msgspec.Struct):
    value_type: str = ""
    write_shape: tuple[_Size, ...] | None = None


class _Key(msgspec.Struct):
    key: str | int


class _Leaf(msgspec.Struct):
    key_metadata: list[_Key]
    value_metadata: _Value


class _Tree(msgspec.Struct):
    tree_metadata: dict[str, _Leaf] = {}
    use_ocdbt: bool = False


class _Zarr(msgspec.Struct):
    dtype: str = ""
    shape: tuple[_Size, ...] | None = None


def read_orbax(candidate: Candidate) -> Contents:
    """Return the arrays of a checkpoint, or of each item of one with several items."""
    limits, path = candidate.request.limits, candidate.path
    files = file_sizes(path, limits)
    entries: list[Entry] = []
    warnings: set[str] = set()
    sizes = _directory_sizes(files)
    for file in sorted(name for name in files if os.path.basename(name) == METADATA):
        tree = _read_json(os.path.join(path, file), _Tree, limits)
        folder = os.path.dirname(file)
        leaves = tree.tree_metadata.values()
        entries += [_entry(path, folder, leaf, None if tree.use_ocdbt else sizes, limits) for leaf in leaves]
        warnings |= {_ONE_DATABASE} if tree.use_ocdbt else set()
    size, used = sum(files.values()), sum(entry.size for entry in entries)
    if used > size:
        raise malformed(path, "its arrays are larger than its files")
    return Contents(
        format="orbax",
        location=path,
        size=size,
        entries=largest_first(entries),
        other_size=size - used,
        stored_size=size,
        breakdowns=(by_file(files),),
        warnings=tuple(sorted(warnings)),
        metadata=_read_json(os.path.join(path, CHECKPOINT), dict[str, Any], limits) if CHECKPOINT in files else {},
    )


def _directory_sizes(files: dict[str, int]) -> Counter[str]:
    """Return the bytes below each directory. To add up all files for each array would take the square of their number."""
    sizes: Counter[str] = Counter()
    for file, size in files.items():
        directory = os.path.dirname(file)
        while directory:
            sizes[directory] += size
            directory = os.path.dirname(directory)
    return sizes


def _entry(path: str, folder: str, leaf: _Leaf, sizes: Counter[str] | None, limits: Limits) -> Entry:
    """Return an array. `sizes` are the bytes of directories, one of which has this array; None if all are in one database."""
    keys = [str(key.key) for key in leaf.key_metadata]
    name = "/".join([*([folder] if folder else []), *keys])
    shape, dtype, size = leaf.value_metadata.write_shape, "", 0
    directory = os.path.join(folder, ".".join(keys))
    if sizes is not None and directory in sizes:
        size = sizes[directory]
        file = os.path.join(path, directory, ".zarray")
        if os.path.exists(file):
            array = _read_json(file, _Zarr, limits)
            shape, dtype = array.shape, array.dtype
    return Entry(name=name, type=leaf.value_metadata.value_type or "array", size=size, dtype=dtype, shape=shape)


def _read_json(path: str, kind: Any, limits: Limits) -> Any:
    with open_source(path, limits) as source:
        data = source.read(0, source.size)
    check_json(path, data, limits, "steps" if kind is _Tree else "entries")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise malformed(path, str(error)) from error
