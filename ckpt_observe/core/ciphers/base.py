"""The contract of a cipher: bytes that only the holder of the key can read or alter."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ckpt_observe.core.blob import Buffer


@runtime_checkable
class Cipher(Protocol):
    """Authenticated encryption."""

    name: str
    """As the header of a checkpoint names it."""
    key_id: str
    """Name of the key that new checkpoints are encrypted with; may be empty."""

    def encrypt(self, data: Buffer, binding: bytes) -> bytes:
        """The data, unreadable, and tied to `binding`."""
        ...

    def decrypt(self, data: Buffer, binding: bytes, key_id: str) -> bytes:
        """The data again; AccessError when the key is another or the data was moved or altered."""
        ...
