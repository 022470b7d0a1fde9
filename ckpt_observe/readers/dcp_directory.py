"""Directories of torch.distributed.checkpoint. `.metadata` is a pickle: its opcodes are followed, and nothing is unpickled."""

from __future__ import annotations

import os
from collections import Counter

from ckpt_observe.errors import IntegrityError
from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.contents import Contents, Entry, largest_first
from ckpt_observe.readers.directory_files import by_file, file_sizes
from ckpt_observe.readers.pickle_calls import warnings_about
from ckpt_observe.readers.pickle_machine import PickleMachine
from ckpt_observe.readers.pickle_nodes import MAX_FIELDS, Node
from ckpt_observe.readers.source import malformed, open_source
from ckpt_observe.readers.streams import file_stream
from ckpt_observe.support.advice import add_advice

METADATA = ".metadata"
_DEPTH = 8
"""Levels from the metadata to the sizes of a chunk."""


def read_dcp(candidate: Candidate) -> Contents:
    """Return the tensors and other values, with the bytes that they have in the files of all ranks."""
    limits = candidate.request.limits
    with open_source(os.path.join(candidate.path, METADATA), limits) as source:
        machine = PickleMachine(file_stream(source), limits, source.path, depth=_DEPTH)
        root = machine.run().resolved
    values, storage = root.get("state_dict_metadata"), root.get("storage_data")
    if values is None:
        raise malformed(candidate.path, f"{METADATA} has no `state_dict_metadata`")
    files = file_sizes(candidate.path, limits)
    sizes, warnings = Counter[str](), values.warnings("values")
    if storage is not None:
        sizes, warnings = _sizes_by_name(candidate.path, storage, files), (*warnings, *storage.warnings("sizes of chunks"))
    entries = largest_first(_entry(key.name(), child.resolved, sizes[key.name()]) for key, child in values.items)
    size, used = sum(files.values()), sum(entry.size for entry in entries)
    if used > size:
        raise malformed(candidate.path, "its values are larger than its files")
    return Contents(
        format="dcp",
        location=candidate.path,
        size=size,
        entries=entries,
        other_size=size - used,
        stored_size=size,
        breakdowns=(by_file(files),),
        imports=tuple(sorted(machine.imports)),
        warnings=(*warnings, *warnings_about(machine.imports)),
        version=str(version.value) if (version := root.get("version")) is not None else "",
    )


def _sizes_by_name(path: str, storage: Node, files: dict[str, int]) -> Counter[str]:
    """Return the bytes of each value. IntegrityError if a file is missing or too short."""
    sizes: Counter[str] = Counter()
    for key, child in storage.items:
        name, info = key.resolved.get("fqn"), child.resolved
        file, offset, length = (info.get(field) for field in ("relative_path", "offset", "length"))
        if name is None or file is None or offset is None or length is None:
            raise malformed(path, f"{METADATA} does not say in which file a value is")
        if not isinstance(length.value, int) or not isinstance(offset.value, int) or min(length.value, offset.value) < 0:
            raise malformed(path, f"{METADATA} has impossible offsets")
        if offset.value + length.value > files.get(str(file.value), -1):
            text = f"{path} needs {offset.value + length.value} bytes of {file.value!s:.80}, which is missing or shorter"
            raise IntegrityError(add_advice(text, "integrity.incomplete"), code="integrity.incomplete")
        sizes[str(name.value)] += length.value
    return sizes


def _entry(name: str, value: Node, size: int) -> Entry:
    shape, properties, chunks = (value.get(field) for field in ("size", "properties", "chunks"))
    if shape is None:
        return Entry(name=name, type="bytes", size=size)
    fields = properties.items[:MAX_FIELDS] if properties is not None else ()
    dtype = next((child.resolved.value for _, child in fields if child.resolved.type == "global"), "")
    details: dict[str, str | int] = {"chunks": chunks.count} if chunks is not None and chunks.count is not None else {}
    dtype = str(dtype).removeprefix("torch.")
    return Entry(name=name, type="torch.Tensor", size=size, dtype=dtype, shape=shape.integers(), details=details)
