"""`.npy` and `.npz` files: the header of each array. The data is not read."""

from __future__ import annotations

import ast
from typing import Final

from ckpt_observe.readers import zip_directory
from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.contents import Contents, Entry, largest_first
from ckpt_observe.readers.source import malformed, truncated

MAGIC: Final = b"\x93NUMPY"
_MAX_HEADER: Final = 10_000
"""The limit of numpy itself: parsing a longer Python literal can exceed the call stack."""
_PREFIX: Final = 12
_USUAL_HEADER: Final = 512
"""Bytes that contain the header of almost every array."""
OBJECT_WARNING: Final = "{} is an array of Python objects: loading it (allow_pickle=True) unpickles them, which can run code"


def read_npy(candidate: Candidate) -> Contents:
    """Return dtype, shape and size of a single array."""
    source = candidate.source
    entry = array_entry(source.start(_PREFIX + _MAX_HEADER), source.size, "array", source.path)
    return Contents(
        format="npy",
        location=source.path,
        size=source.size,
        entries=(entry,),
        other_size=source.size - entry.size,
        stored_size=source.size,
        warnings=object_warnings([entry]),
        metadata=dict(entry.details),
    )


def read_npz(candidate: Candidate) -> Contents:
    """Return dtype, shape and size of each array. Of a compressed array, only the start is decompressed."""
    source = candidate.source
    entries = []
    for member in zip_directory.read_directory(source).values():
        start = zip_directory.read_start(source, member, _USUAL_HEADER)
        if header_end(start) > len(start):
            start = zip_directory.read_start(source, member, _PREFIX + _MAX_HEADER)
        entry = array_entry(start, member.size, member.name.removesuffix(".npy"), f"{member.name} in {source.path}")
        details = {**entry.details, "stored_size": member.stored_size}
        entries.append(
            Entry(
                name=entry.name,
                type=entry.type,
                size=entry.size,
                dtype=entry.dtype,
                shape=entry.shape,
                digest=member.digest,
                details=details,
            )
        )
    used = sum(entry.size for entry in entries)
    size = max(source.size, used)  # compressed arrays have more bytes than the file
    return Contents(
        format="npz",
        location=source.path,
        size=size,
        entries=largest_first(entries),
        other_size=size - used,
        stored_size=source.size,
        warnings=object_warnings(entries),
    )


def array_entry(start: bytes, size: int, name: str, location: str) -> Entry:
    """Return the entry of an array from the start of its file, which has `size` bytes in all."""
    if not start.startswith(MAGIC) or len(start) < _PREFIX:
        raise malformed(location, "it does not start with the header of a NumPy array")
    major = start[6]
    prefix = 10 if major == 1 else _PREFIX
    length = header_end(start) - prefix
    if length > _MAX_HEADER:
        raise malformed(location, f"its header has {length} bytes, and NumPy reads at most {_MAX_HEADER}")
    header = start[prefix : prefix + length]
    if len(header) < length:
        raise truncated(location, "it ends inside its header")
    try:
        fields = ast.literal_eval(header.decode("latin1").strip())
        descr, order, shape = fields["descr"], bool(fields["fortran_order"]), tuple(map(int, fields["shape"]))
    except (ValueError, SyntaxError, TypeError, KeyError, OverflowError, MemoryError, RecursionError) as error:
        raise malformed(location, f"the header of its array is not valid: {error}") from error
    if min(shape, default=0) < 0:
        raise malformed(location, f"its array has the shape {shape!s:.80}")
    details: dict[str, str | int] = {"order": "F" if order else "C", "version": f"{major}.{start[7]}"}
    return Entry(name=name, type="numpy.ndarray", size=max(0, size - prefix - length), dtype=_dtype(descr), shape=shape, details=details)


def header_end(start: bytes) -> int:
    """Return where the data of an array starts, as its first bytes say."""
    prefix, width = (10, 2) if start[6:7] == b"\x01" else (_PREFIX, 4)
    return prefix + int.from_bytes(start[8 : 8 + width], "little")


def object_warnings(entries: list[Entry]) -> tuple[str, ...]:
    """Return a warning for each array of Python objects."""
    return tuple(OBJECT_WARNING.format(entry.name) for entry in entries if "O" in entry.dtype)


def _dtype(descr: object) -> str:
    """Return the dtype as numpy writes it; a structured one as the list of its fields."""
    return descr if isinstance(descr, str) else repr(descr)[:200]
