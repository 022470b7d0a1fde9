"""Encryption of payloads with AES-256-GCM or ChaCha20-Poly1305, from `cryptography` (extra `crypto`).

Only the payload of a checkpoint is encrypted; its header, including the metadata, stays readable. The key has 32 bytes. It is passed as
an argument, read from CKPT_ENCRYPTION_KEY as hex or base64, or returned by a function of the key id, so that keys can be rotated while
old checkpoints stay readable.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from ckpt_observe.core.format.blob import Buffer
from ckpt_observe.errors import AccessError, CapacityError, ConfigError, MissingExtraError
from ckpt_observe.support.host_exceptions import raise_host_exception

if TYPE_CHECKING:  # optional, and imported only if something is encrypted
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

KEY_VARIABLE = "CKPT_ENCRYPTION_KEY"
KeySource = bytes | Callable[[str], bytes]

_NONCE = 12


@runtime_checkable
class Cipher(Protocol):
    """Encrypts and decrypts payloads, and detects altered ones."""

    name: str
    """Recorded in the header of a checkpoint."""
    key_id: str
    """Name of the key for new checkpoints; may be empty."""

    def encrypt(self, data: Buffer, binding: bytes) -> bytes:
        """Return the data encrypted and bound to `binding`: it decrypts only with the same binding."""
        ...

    def decrypt(self, data: Buffer, binding: bytes, key_id: str) -> bytes:
        """Return the original data. AccessError if this key is missing or wrong, or if the data was altered or bound to something else."""
        ...


class AeadCipher:
    """Encrypts with AES-256-GCM or ChaCha20-Poly1305. The result is the nonce followed by the ciphertext and its tag."""

    def __init__(
        self, key: KeySource | None = None, *, key_id: str = "", kind: Literal["aes-256-gcm", "chacha20-poly1305"] = "aes-256-gcm"
    ) -> None:
        kinds = _load_ciphers()
        if kind not in kinds:
            raise ConfigError(f"unknown cipher {kind!r}; use one of: {', '.join(kinds)}")
        if not isinstance(key_id, str):  # the header, and so the checkpoint, could not be read again
            raise ConfigError(f"`key_id` must be a string, not {key_id!r:.80}")
        self.name: str = kind
        self.key_id = key_id
        self._cipher_type = kinds[kind]
        self._key = key_from_environment() if key is None else key
        self._create_cipher(key_id)  # report an invalid key now, not at the first save

    def encrypt(self, data: Buffer, binding: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE)
        try:
            ciphertext: bytes = self._create_cipher(self.key_id).encrypt(nonce, data, binding)
        except OverflowError as error:
            text = "an encrypted checkpoint can have at most 2 GiB: save the state in parts"
            raise CapacityError(text, code="storage.too_large") from error
        return nonce + ciphertext

    def decrypt(self, data: Buffer, binding: bytes, key_id: str) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - optional

        try:
            cipher = self._create_cipher(key_id)
        except ConfigError as error:  # the key function returned no valid key
            raise _missing_key_error(key_id) from error
        try:
            plaintext: bytes = cipher.decrypt(bytes(data[:_NONCE]), data[_NONCE:], binding)
            return plaintext
        except (InvalidTag, ValueError) as error:  # ValueError: shorter than a nonce
            raise AccessError("the key is wrong, or this checkpoint was altered", code="encryption.wrong_key") from error

    def _create_cipher(self, key_id: str) -> AESGCM | ChaCha20Poly1305:
        try:
            key = self._key(key_id) if callable(self._key) else self._key
        except Exception as error:  # the program's key function may raise anything
            raise_host_exception(error)
            raise _missing_key_error(key_id) from error
        if not isinstance(key, bytes | bytearray) or len(key) != 32:
            actual = f"{len(key)} bytes" if isinstance(key, bytes | bytearray) else type(key).__name__
            raise ConfigError(f"an encryption key must be a `bytes` object of length 32, not {actual}")
        return self._cipher_type(key)


def key_from_environment() -> bytes:
    """Return the key in CKPT_ENCRYPTION_KEY. ConfigError if it is not set or not decodable."""
    text = os.environ.get(KEY_VARIABLE, "")
    if not text:
        raise ConfigError(f"encryption needs a key: pass one, or set {KEY_VARIABLE} to 32 bytes as hex or base64")
    try:
        return bytes.fromhex(text) if len(text) == 64 else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ConfigError(f"{KEY_VARIABLE} is neither hex nor base64; set it to 32 bytes in one of these forms") from None


def _load_ciphers() -> dict[str, type[AESGCM | ChaCha20Poly1305]]:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305  # noqa: PLC0415 - optional
    except ImportError as error:
        raise MissingExtraError("encryption", "crypto") from error
    return {"aes-256-gcm": AESGCM, "chacha20-poly1305": ChaCha20Poly1305}


def _missing_key_error(key_id: str) -> AccessError:
    return AccessError(f"the key function returned no key of 32 bytes for the id {key_id!r}", code="encryption.no_key")
