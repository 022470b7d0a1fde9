"""`.keras` files: the members of the zip file, what its JSON says, and the weights in its HDF5 member."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ckpt_observe.errors import CompatibilityError
from ckpt_observe.readers import zip_directory
from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.contents import Contents, Entry, largest_first
from ckpt_observe.readers.hdf5_structure import Dataset, Hdf5Structure
from ckpt_observe.readers.source import check_json, malformed, truncated
from ckpt_observe.readers.zip_directory import Member

MEMBERS: Final = frozenset({"config.json", "metadata.json"})
_COMPRESSED: Final = "the weights in {} are not shown, because the member is compressed, which Keras does not do"


class _Config(msgspec.Struct):
    class_name: str = ""
    module: str | None = None


def read_keras(candidate: Candidate) -> Contents:
    """Return the members, and the class of the model."""
    source = candidate.source
    members = zip_directory.read_directory(source)
    try:
        config = msgspec.json.decode(zip_directory.read_member(source, members["config.json"]), type=_Config)
        data = zip_directory.read_member(source, members["metadata.json"])
        check_json(f"metadata.json in {source.path}", data, source.limits)
        metadata = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise malformed(source.path, str(error)) from error
    warnings = [_COMPRESSED.format(name) for name, member in members.items() if name.endswith(".h5") and not member.is_stored]
    entries = largest_first(_entry(candidate, member, warnings) for member in members.values())
    used = sum(entry.size for entry in entries)
    if used > source.size:
        raise malformed(source.path, "its members are larger than the file")
    return Contents(
        format="keras",
        location=source.path,
        size=source.size,
        entries=entries,
        other_size=source.size - used,
        stored_size=source.size,
        imports=(f"{config.module or 'keras'}.{config.class_name}",) if config.class_name else (),
        warnings=tuple(warnings),
        metadata=metadata,
        version=str(metadata.get("keras_version", "")),
    )


def _entry(candidate: Candidate, member: Member, warnings: list[str]) -> Entry:
    """Return a member. An HDF5 file has its datasets as children, if the depth asks for them."""
    datasets: list[Dataset] = []
    if member.name.endswith(".h5") and member.is_stored and member.size:
        source, limits = candidate.source, candidate.request.limits
        start = zip_directory.data_offset(source, member)

        def read(address: int, size: int) -> bytes:
            if address + size > member.size:
                raise truncated(source.path, f"{member.name} needs {address + size} bytes, and has {member.size}")
            return source.read(start + address, size)

        try:
            datasets = list(Hdf5Structure(read, f"{member.name} in {source.path}", limits).datasets())
        except CompatibilityError as error:
            warnings.append(str(error))
    if sum(dataset.size for dataset in datasets) > member.size:
        raise malformed(candidate.path, f"the datasets in {member.name} are larger than it")
    is_deep = candidate.request.depth > 1
    children = [Entry(name=each.name, type="dataset", size=each.size, dtype=each.dtype, shape=each.shape) for each in datasets if is_deep]
    return Entry(
        name=member.name,
        type="file",
        size=member.stored_size,
        items=len(datasets) if datasets else None,
        digest=member.digest,
        children=largest_first(children),
    )
