"""The contract of a serializer: it turns a state into bytes and back. A load returns an equal state or raises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from ckpt_observe.core.format import digests
from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.model import KeyInfo

Member = Buffer | Blob
"""The serialized value of one key."""
MAX_KEYS = 10_000
"""Top-level keys that a header lists. With more keys it lists none: it would be too long to be a summary, or to be read."""


class Document(Blob):
    """A serialized state and, unless there are too many, a description of its top-level keys."""

    __slots__ = ("keys", "members")

    def __init__(
        self, pieces: Sequence[Buffer], keys: dict[str, KeyInfo] | None = None, members: Mapping[str, Member] | None = None
    ) -> None:
        super().__init__(pieces)
        listed = keys is not None and len(keys) <= MAX_KEYS
        self.keys = keys if keys and listed else {}
        self.members = members if members and listed else {}
        """The serialized value of each key, if the format serializes keys separately."""

    def snapshot(self) -> Document:
        """Return the document with a copy of all memory that the program could still change."""
        copies = {id(piece): bytes(piece) for piece in self.pieces if not isinstance(piece, bytes)}
        members = {
            key: Blob([copies.get(id(piece), piece) for piece in member]) if isinstance(member, Blob) else member
            for key, member in self.members.items()
        }
        return Document([copies.get(id(piece), piece) for piece in self.pieces], self.keys, members)

    def with_digests(self) -> Document:
        """Return the document with the digests of large keys, which `dumps` does not compute because the caller waits for it."""
        large = {key: member for key, member in self.members.items() if isinstance(member, Blob) and not self.keys[key].digest}
        if not large:
            return self
        computed = dict(zip(large, digests.compute_each(list(large.values())), strict=True))
        keys = {key: msgspec.structs.replace(info, digest=computed.get(key, info.digest)) for key, info in self.keys.items()}
        return Document(self.pieces, keys, self.members)

    def compute_digests(self) -> tuple[str, dict[str, KeyInfo]]:
        """Return the keyed digest and the keys with their digests. Each byte is hashed once."""
        keys = self.with_digests().keys
        members = [(keys[key].digest, member) for key, member in self.members.items() if isinstance(member, Blob)]
        return digests.compute_keyed(self.pieces[0], members), keys

    @property
    def has_keyed_digest(self) -> bool:
        """Whether the document is its first piece followed by its keys, so that `compute_digests` applies."""
        return any(isinstance(member, Blob) for member in self.members.values())


class Serializer(Protocol):
    """Turns a state into bytes and back."""

    name: str
    """Recorded in the header of a checkpoint."""

    def dumps(self, state: Any) -> Document:
        """Serialize a state. SerializationError if it cannot be serialized, or if loading it would not return an equal state.

        pickle does not check the latter.
        """
        ...

    def loads(self, data: Buffer) -> Any:
        """Return the state. SerializationError if the bytes are not in this format."""
        ...


@runtime_checkable
class KeyedSerializer(Serializer, Protocol):
    """A serializer whose documents consist of separately serialized keys."""

    def join(self, members: Mapping[str, Any]) -> Sequence[Buffer]:
        """Return the pieces of a document with these members: values by key that this serializer has serialized."""
        ...

    def offsets(self, keys: Mapping[str, KeyInfo]) -> dict[str, int]:
        """Return the offset of each value in a document with these keys."""
        ...
