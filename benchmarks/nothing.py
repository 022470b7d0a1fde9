"""A Checkpointer whose serializer, codec and store do nothing: what is left is the core's own path, and whatever observes it."""

from __future__ import annotations

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.serializers import Document
from ckpt_observe.core.stores.memory import MemoryStore

DOCUMENT = Document((bytes(2048),), {})
PACKED = bytes(800)


class Serializer:
    name = "nothing"

    def dumps(self, state: object) -> Document:  # noqa: ARG002
        return DOCUMENT


class Codec:
    name = "nothing"

    def compress(self, data: object) -> bytes:  # noqa: ARG002
        return PACKED


class Store(MemoryStore):
    """Remembers the last checkpoint only."""

    def put(self, info, blob):  # noqa: ARG002
        self.last = bytes(blob)

    def get(self, task, id):  # noqa: ARG002
        return self.last


def checkpointer() -> Checkpointer:
    made = Checkpointer(Store())
    made.serializer, made.codec = Serializer(), Codec()
    return made
