"""Converts a serialized state to a payload and back: compression, then encryption, each if configured."""

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
    """Serializer, codec and cipher of new checkpoints. Existing ones are read as their header says, if encrypted with this cipher."""

    def __init__(self, serializer: Serializer, codec: Codec | None, cipher: Cipher | None) -> None:
        self.serializer = serializer
        self.codec = codec
        self.cipher = cipher

    def pack(self, document: Blob, task: str, id: str) -> Blob:
        """Return the payload to store: the document compressed and encrypted, if configured. Encryption binds it to this task and id."""
        if self.codec is not None:
            document = steps.compress(self.codec, document)
        if self.cipher is not None:
            document = Blob((steps.encrypt(self.cipher, document.joined(), _binding(task, id)),))
        return document

    def unpack(self, info: CheckpointInfo, payload: Buffer) -> Buffer:
        """Return the serialized state: the payload decrypted and decompressed. The caller has checked the payload's digest."""
        if info.cipher:
            payload = steps.decrypt(self._cipher_of(info), payload, _binding(info.task, info.id), info.key_id)
        if info.codec != "none":
            if info.codec not in codecs:
                raise _unsupported(info, f"compression {info.codec!r}")
            payload = steps.decompress(codecs.factory(info.codec)(), payload, info.serialized_size)
        return payload

    def decode(self, info: CheckpointInfo, data: Buffer) -> Any:
        return steps.deserialize(self.serializer_of(info), data)

    def serializer_of(self, info: CheckpointInfo) -> Serializer:
        if info.format == self.serializer.name:
            return self.serializer
        if info.format == "pickle":  # never implicitly: unpickling runs code from the file
            raise AccessError(
                f"checkpoint {info.id!r} of {info.task!r} is a pickle, which can run code when loaded; pass format='pickle' if you trust it"
            )
        if info.format not in serializers:
            raise _unsupported(info, f"format {info.format!r}")
        return serializers.factory(info.format)()

    def _cipher_of(self, info: CheckpointInfo) -> Cipher:
        if self.cipher is None:
            message = f"checkpoint {info.id!r} of {info.task!r} is encrypted ({info.cipher}); pass its cipher as `encryption`"
            raise AccessError(message, code="encryption.no_key")
        if self.cipher.name != info.cipher:
            raise _unsupported(info, f"encryption {info.cipher!r}")
        return self.cipher


def _binding(task: str, id: str) -> bytes:
    """Return the bytes that bind an encrypted payload to its checkpoint: copied to another one, it cannot be decrypted."""
    return f"{len(task)}:{task}/{id}".encode()


def _unsupported(info: CheckpointInfo, feature: str) -> CompatibilityError:
    return CompatibilityError(
        f"checkpoint {info.id!r} of {info.task!r} uses {feature}, which is not available; install, register or configure it",
        code="compatibility.unknown_format",
    )
