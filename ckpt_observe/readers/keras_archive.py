"""`.keras` files: the members of the zip file, and what its JSON says. The weights in it are HDF5, which is not opened."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ckpt_observe.readers import zip_directory
from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.contents import Contents, Entry, largest_first
from ckpt_observe.readers.source import malformed

MEMBERS: Final = frozenset({"config.json", "metadata.json"})
_HDF5_WARNING: Final = "weights are HDF5, whose structure is not shown: see the member with h5py"


class _Config(msgspec.Struct):
    class_name: str = ""
    module: str | None = None


def read_keras(candidate: Candidate) -> Contents:
    """Return the members, and the class of the model."""
    source = candidate.source
    members = zip_directory.read_directory(source)
    try:
        config = msgspec.json.decode(zip_directory.read_member(source, members["config.json"]), type=_Config)
        metadata = msgspec.json.decode(zip_directory.read_member(source, members["metadata.json"]), type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise malformed(source.path, str(error)) from error
    entries = largest_first(
        Entry(name=name, type="file", size=member.stored_size, digest=member.digest) for name, member in members.items()
    )
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
        warnings=(_HDF5_WARNING,) if any(name.endswith(".h5") for name in members) else (),
        metadata=metadata,
        version=str(metadata.get("keras_version", "")),
    )
