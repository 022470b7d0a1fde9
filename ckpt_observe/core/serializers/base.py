"""The contract of a serializer: state to bytes and back, the same state or an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from ckpt_observe.core import digests
from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.registry import Registry

Member = Buffer | Blob
"""The serialized value of one key."""
MOST_KEYS = 10_000
"""Top-level keys that a header lists. One that lists a million is no summary, and longer than is read."""


class Document(Blob):
    """A serialized state, and what is known about its top-level keys, where they are not too many."""

    __slots__ = ("keys", "members")

    def __init__(
        self, pieces: Sequence[Buffer], keys: dict[str, KeyInfo] | None = None, members: Mapping[str, Member] | None = None
    ) -> None:
        super().__init__(pieces)
        listed = keys is not None and len(keys) <= MOST_KEYS
        self.keys = keys if keys and listed else {}
        self.members = members if members and listed else {}
        """The serialized value of each key, where the format keeps them apart."""

    def frozen(self) -> Document:
        """The same, with memory that somebody else may still change copied."""
        copies = {id(piece): bytes(piece) for piece in self.pieces if not isinstance(piece, bytes)}
        members = {
            key: Blob([copies.get(id(piece), piece) for piece in member]) if isinstance(member, Blob) else member
            for key, member in self.members.items()
        }
        return Document([copies.get(id(piece), piece) for piece in self.pieces], self.keys, members)

    def digested(self) -> Document:
        """The same, with the digests of keys that are so large that `dumps` left them to whoever has the time."""
        large = {key: member for key, member in self.members.items() if isinstance(member, Blob) and not self.keys[key].digest}
        if not large:
            return self
        missing = dict(zip(large, digests.of_each(list(large.values())), strict=True))
        keys = {key: msgspec.structs.replace(info, digest=missing.get(key, info.digest)) for key, info in self.keys.items()}
        return Document(self.pieces, keys, self.members)

    def digest(self) -> tuple[str, dict[str, KeyInfo]]:
        """Of a document whose keys stand behind its first piece: its digest and the keys with theirs, each byte hashed once."""
        keys = self.digested().keys
        members = [(keys[key].digest, member) for key, member in self.members.items() if isinstance(member, Blob)]
        return digests.of_keyed(self.pieces[0], members), keys

    @property
    def is_keyed(self) -> bool:
        """Whether it has such a digest."""
        return any(isinstance(member, Blob) for member in self.members.values())


class Serializer(Protocol):
    """Turns a state into bytes and back."""

    name: str
    """As the header of a checkpoint names it."""

    def dumps(self, state: Any) -> Document:
        """The state as bytes. A state that would not come back equal is refused with SerializationError."""
        ...

    def loads(self, data: Buffer) -> Any:
        """The state again. Bytes that are none are refused with SerializationError."""
        ...


@runtime_checkable
class KeyedSerializer(Serializer, Protocol):
    """One whose documents are made of the values of their keys, each serialized by itself."""

    def join(self, members: Mapping[str, Any]) -> Sequence[Buffer]:
        """The pieces of a document of these members, which are its own."""
        ...

    def offsets(self, keys: Mapping[str, KeyInfo]) -> dict[str, int]:
        """Where in a document with these keys each value begins."""
        ...


serializers: Registry[Serializer] = Registry(
    "format",
    {
        "arrays": "ckpt_observe.core.serializers.arrays:ArraysSerializer",
        "json": "ckpt_observe.core.serializers.json_:JsonSerializer",
        "msgpack": "ckpt_observe.core.serializers.msgpack:MsgpackSerializer",
        "pickle": "ckpt_observe.core.serializers.pickle_:PickleSerializer",
    },
)
