"""The contract of a serializer: state to bytes and back, the same state or an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.registry import Registry

MOST_KEYS = 10_000
"""Top-level keys that a header lists. One that lists a million is no summary, and longer than is read."""


class Document(Blob):
    """A serialized state, and what is known about its top-level keys, where they are not too many."""

    __slots__ = ("keys", "members")

    def __init__(
        self, pieces: Sequence[Buffer], keys: dict[str, KeyInfo] | None = None, members: Mapping[str, Buffer] | None = None
    ) -> None:
        super().__init__(pieces)
        listed = keys is not None and len(keys) <= MOST_KEYS
        self.keys = keys if keys and listed else {}
        self.members = members if members and listed else {}
        """The serialized value of each key, where the format keeps them apart."""

    def frozen(self) -> Document:
        """The same, with memory that somebody else may still change copied."""
        return Document([piece if isinstance(piece, bytes) else bytes(piece) for piece in self.pieces], self.keys, self.members)


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

    def join(self, members: Mapping[str, Buffer]) -> bytes:
        """A document of these serialized values."""
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
