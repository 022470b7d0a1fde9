"""Document to payload and back: compression and encryption, in that order, each only where there is one."""

from __future__ import annotations

from typing import Any

from ckpt_observe.core import steps
from ckpt_observe.core.ciphers import Cipher
from ckpt_observe.core.codecs import Codec
from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.plugins import codecs, serializers
from ckpt_observe.core.serializers import Serializer
from ckpt_observe.errors import AccessError, CompatibilityError


class Pipeline:
    """The serializer, codec and cipher of new checkpoints; old ones are read with whatever they were written with."""

    def __init__(self, serializer: Serializer, codec: Codec | None, cipher: Cipher | None) -> None:
        self.serializer = serializer
        self.codec = codec
        self.cipher = cipher

    def pack(self, document: Blob, task: str, id: str) -> Blob:
        """The payload to store. An encrypted one is tied to its checkpoint."""
        if self.codec is not None:
            document = steps.compress(self.codec, document)
        if self.cipher is not None:
            document = Blob((steps.encrypt(self.cipher, document.joined(), _binding(task, id)),))
        return document

    def unpack(self, info: CheckpointInfo, payload: Buffer) -> Buffer:
        """The serialized state in a payload whose digest is known to fit."""
        if info.cipher:
            payload = steps.decrypt(self._cipher_of(info), payload, _binding(info.task, info.id), info.key_id)
        if info.codec != "none":
            if info.codec not in codecs:
                raise _foreign(info, f"compression {info.codec!r}")
            payload = steps.decompress(codecs.factory(info.codec)(), payload, info.serialized_size)
        return payload

    def decode(self, info: CheckpointInfo, data: Buffer) -> Any:
        return steps.deserialize(self.serializer_of(info), data)

    def serializer_of(self, info: CheckpointInfo) -> Serializer:
        if info.format == self.serializer.name:
            return self.serializer
        if info.format == "pickle":  # never by fallback: it runs what the file says
            raise AccessError(f"checkpoint {info.id!r} of {info.task!r} is a pickle: open it with format='pickle' if you trust it")
        if info.format not in serializers:
            raise _foreign(info, f"format {info.format!r}")
        return serializers.factory(info.format)()

    def _cipher_of(self, info: CheckpointInfo) -> Cipher:
        if self.cipher is None:
            message = f"checkpoint {info.id!r} of {info.task!r} is encrypted ({info.cipher}): give the Checkpointer its cipher"
            raise AccessError(message, code="encryption.no_key")
        if self.cipher.name != info.cipher:
            raise _foreign(info, f"encryption {info.cipher!r}")
        return self.cipher


def _binding(task: str, id: str) -> bytes:
    """What an encrypted payload is tied to: moved to another checkpoint's place, it does not open."""
    return f"{len(task)}:{task}/{id}".encode()


def _foreign(info: CheckpointInfo, what: str) -> CompatibilityError:
    return CompatibilityError(f"checkpoint {info.id!r} of {info.task!r} has {what}, which is not here", code="compatibility.unknown_format")
