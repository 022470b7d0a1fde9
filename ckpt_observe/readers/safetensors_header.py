"""`.safetensors` files: a length, a JSON header, and the data of the tensors, which is not read."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from ckpt_observe.readers.candidate import Candidate
from ckpt_observe.readers.contents import Contents, Entry, largest_first
from ckpt_observe.readers.source import exceeds, malformed, truncated

_MAX_HEADER: Final = 100_000_000
"""The limit of the safetensors library itself."""
_COLONS: Final = 4
"""In the JSON of a tensor: of its name and of its three fields."""
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Tensor(msgspec.Struct):
    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


def is_safetensors(start: bytes) -> bool:
    """Return whether a file starts like one: a plausible length, then an opening brace."""
    return len(start) >= 9 and start[8:9] == b"{" and int.from_bytes(start[:8], "little") <= _MAX_HEADER


def read_safetensors(candidate: Candidate) -> Contents:
    """Return names, dtypes, shapes and sizes from the header."""
    source = candidate.source
    length = int.from_bytes(source.read(0, 8), "little")
    header = source.read(8, length)
    if header.count(b":") > _COLONS * source.limits.entries:
        raise exceeds(f"the number of tensors in {source.path}", "entries", source.limits.entries)
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        metadata = msgspec.json.decode(raw.pop("__metadata__", b"{}"), type=dict[str, str])
        tensors = {name: msgspec.json.decode(value, type=_Tensor) for name, value in raw.items()}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise malformed(source.path, f"its header is not valid: {error}") from error
    data_size = source.size - 8 - length
    entries = []
    previous_end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        start, end = tensor.data_offsets
        if end > data_size:
            raise truncated(source.path, f"the data of {name!r:.80} ends at byte {end}, and the file has {data_size} bytes of data")
        if not previous_end <= start <= end:
            raise malformed(source.path, f"the data of {name!r:.80} overlaps that of another tensor")
        previous_end = end
        entries.append(Entry(name=name, type="tensor", size=end - start, dtype=tensor.dtype, shape=tensor.shape))
    used = sum(entry.size for entry in entries)
    return Contents(
        format="safetensors",
        location=source.path,
        size=source.size,
        entries=largest_first(entries),
        other_size=source.size - used,
        stored_size=source.size,
        metadata=dict(metadata),
    )
