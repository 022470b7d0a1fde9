"""What the tensors of a state are, without their content: name, data type and shape of each. A load is compared with its save.

The summary of a save is recorded where the state is, and kept in the state directory, because most loads happen in another process. So it
is bounded: with very many tensors, it is a digest for each top-level key.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.metrics import OTHER

MAX_TENSORS: Final = 1024
"""Tensors that a summary names. It has some 2 kB for 300 tensors of a model, because their names and shapes repeat."""
_MAX_KEYS: Final = 64
_CHUNK: Final = 1800
"""Characters of a text of the journal that is stored as it is."""
_MAX_CHUNKS: Final = 24
_MAX_BYTES: Final = 1 << 20
"""Limit of an unpacked summary. A journal may be damaged."""
_MAX_NAMED: Final = 20
"""Altered keys that a span names."""


class Tensor(NamedTuple):
    """One tensor of a state."""

    path: str
    """Where it is in the state, with dots."""
    name: str
    """The path, or `_other_` if it may be content."""
    type: str
    """Data type and shape, such as `float32[10,3]`."""
    digest: str = ""
    """Of a sample of its content; empty if none was taken."""


class TensorSummary(msgspec.Struct, frozen=True):
    """The tensors of one state."""

    keys: dict[str, str]
    """A digest of names, types and shapes, by top-level key."""
    tensors: dict[str, str] | None = None
    """Type and shape by name; None if there are too many."""
    contents: dict[str, str] = {}
    """Digests of the sampled content, by the names of tensors, or by key if there are too many tensors."""
    unnamed: str = ""
    """A digest of the names, types and shapes of tensors whose names are not known, if the others are named."""

    @classmethod
    def of(cls, tensors: Iterable[Tensor]) -> TensorSummary:
        """Return the summary of these tensors."""
        everything = sorted(tensors)
        by_key: dict[str, list[Tensor]] = {}
        for tensor in everything:
            by_key.setdefault(tensor.name.partition(".")[0], []).append(tensor)
        if len(by_key) > _MAX_KEYS:
            by_key = {OTHER: everything}
        keys = {key: _digest_types(group) for key, group in by_key.items()}
        if len(everything) > MAX_TENSORS:
            complete = {key: group for key, group in by_key.items() if all(each.digest for each in group)}
            return cls(keys, None, {key: _digest(each.digest for each in group) for key, group in complete.items()})
        named = [tensor for tensor in everything if tensor.name != OTHER]
        contents = {each.name: each.digest for each in named if each.digest}
        unnamed = _digest_types(tensor for tensor in everything if tensor.name == OTHER)
        return cls(keys, {each.name: each.type for each in named}, contents, unnamed)

    def pack(self) -> list[str]:
        """Return the summary as short texts without characters that a journal would have to examine."""
        data = zlib.compress(msgspec.json.encode(self), 1)
        text = base64.urlsafe_b64encode(data).decode().rstrip("=")
        if len(text) > _CHUNK * _MAX_CHUNKS:
            return TensorSummary(self.keys).pack() if self.tensors is not None or self.contents else []
        return [text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK)]

    @classmethod
    def unpack(cls, chunks: Iterable[str]) -> TensorSummary | None:
        """Return the summary that was packed; None if the texts are damaged."""
        text = "".join(chunks)
        try:
            data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            return msgspec.json.decode(zlib.decompressobj().decompress(data, _MAX_BYTES), type=cls)
        except (ValueError, zlib.error, msgspec.MsgspecError):
            return None

    def compare(self, loaded: TensorSummary) -> dict[str, Any]:
        """Return the attributes of a load that say how its tensors differ from these, which were saved. An empty dict if they do not."""
        are_named = self.tensors is not None and loaded.tensors is not None
        before, after = (self.tensors or {}, loaded.tensors or {}) if are_named else (self.keys, loaded.keys)
        altered = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        types = {f"{before[name]} -> {after[name]}" for name in altered if are_named and name in before and name in after}
        contents: set[str] = set()
        if (self.tensors is None) == (loaded.tensors is None):
            in_both = self.contents.keys() & loaded.contents.keys() - altered
            contents = {name for name in in_both if self.contents[name] != loaded.contents[name]}
        if are_named and self.unnamed != loaded.unnamed:
            altered.add(OTHER)
        lists = {names.ALTERED_KEYS: altered | contents, names.ALTERED_TYPES: types, names.ALTERED_CONTENTS: contents}
        return {name: sorted(each)[:_MAX_NAMED] for name, each in lists.items() if each}


def tensor_type(dtype: Any, shape: Iterable[int]) -> str:
    """Return data type and shape of a tensor, such as `float32[10,3]`."""
    return f"{dtype_name(dtype)}[{','.join(str(each) if type(each) is int else '?' for each in shape)}]"  # torch has symbolic sizes


def dtype_name(dtype: Any) -> str:
    """Return the name of a data type without the name of its library."""
    return str(dtype).rpartition(".")[2]


def _digest_types(tensors: Iterable[Tensor]) -> str:
    return _digest(f"{each.path}:{each.type}" for each in tensors)


def _digest(parts: Iterable[str]) -> str:
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
