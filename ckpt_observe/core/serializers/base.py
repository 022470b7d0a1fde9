"""The contract of a serializer: state to bytes and back, the same state or an error."""

from __future__ import annotations

from typing import Any, Protocol

from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import KeyInfo
from ckpt_observe.core.registry import Registry


class Document(Blob):
    """A serialized state, and what is known about its top-level keys."""

    __slots__ = ("keys",)

    def __init__(self, pieces: tuple[Buffer, ...], keys: dict[str, KeyInfo]) -> None:
        super().__init__(pieces)
        self.keys = keys


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


serializers: Registry[Serializer] = Registry(
    "format",
    {
        "json": "ckpt_observe.core.serializers.json_:JsonSerializer",
        "msgpack": "ckpt_observe.core.serializers.msgpack:MsgpackSerializer",
    },
)
