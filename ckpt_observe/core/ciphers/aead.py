"""AES-256-GCM and ChaCha20-Poly1305, from `cryptography` (extra `crypto`).

The key is 32 bytes: from the environment as hex or base64, given, or asked of a function by key id, so that keys can be
changed while old checkpoints stay readable. The header of a checkpoint stays readable; its payload does not.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Callable
from typing import Literal

from ckpt_observe.core.blob import Buffer
from ckpt_observe.errors import AccessError, CapacityError, ConfigError, MissingExtraError

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
except ImportError as error:
    raise MissingExtraError("encryption", "crypto") from error

KEY_VARIABLE = "CKPT_ENCRYPTION_KEY"
KeySource = bytes | Callable[[str], bytes]

_NONCE = 12
_KINDS: dict[str, type[AESGCM | ChaCha20Poly1305]] = {"aes-256-gcm": AESGCM, "chacha20-poly1305": ChaCha20Poly1305}


class AeadCipher:
    """Nonce, then ciphertext with its tag."""

    def __init__(
        self, key: KeySource | None = None, *, key_id: str = "", kind: Literal["aes-256-gcm", "chacha20-poly1305"] = "aes-256-gcm"
    ) -> None:
        if kind not in _KINDS:
            raise ConfigError(f"unknown cipher {kind!r}: known are {', '.join(_KINDS)}")
        if not isinstance(key_id, str):  # the header would not be read again, and with it the checkpoint
            raise ConfigError(f"the id of a key is a string, not {key_id!r:.80}")
        self.name: str = kind
        self.key_id = key_id
        self._make = _KINDS[kind]
        self._key = key_from_environment() if key is None else key
        self._aead(key_id)  # a wrong key is told now, not at the first save

    def encrypt(self, data: Buffer, binding: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE)
        try:
            sealed: bytes = self._aead(self.key_id).encrypt(nonce, data, binding)
        except OverflowError as error:
            raise CapacityError("one encrypted checkpoint has at most 2 GiB: save the state in parts", code="storage.too_large") from error
        return nonce + sealed

    def decrypt(self, data: Buffer, binding: bytes, key_id: str) -> bytes:
        try:
            aead = self._aead(key_id)
        except ConfigError as error:  # whoever is asked for keys does not have it
            raise _no_key(key_id) from error
        try:
            opened: bytes = aead.decrypt(bytes(data[:_NONCE]), data[_NONCE:], binding)
            return opened
        except (InvalidTag, ValueError) as error:  # ValueError: shorter than a nonce
            raise AccessError("the key does not open this checkpoint", code="encryption.wrong_key") from error

    def _aead(self, key_id: str) -> AESGCM | ChaCha20Poly1305:
        try:
            key = self._key(key_id) if callable(self._key) else self._key
        except Exception as error:  # whatever the program's own function raises
            raise _no_key(key_id) from error
        if not isinstance(key, bytes | bytearray) or len(key) != 32:
            found = len(key) if isinstance(key, bytes | bytearray) else type(key).__name__
            raise ConfigError(f"an encryption key is 32 bytes, not {found}")
        return self._make(key)


def _no_key(key_id: str) -> AccessError:
    return AccessError(f"the key {key_id!r} of this checkpoint is not to be had", code="encryption.no_key")


def key_from_environment() -> bytes:
    text = os.environ.get(KEY_VARIABLE, "")
    if not text:
        raise ConfigError(f"encryption needs a key: give one, or set {KEY_VARIABLE} to 32 bytes as hex or base64")
    try:
        return bytes.fromhex(text) if len(text) == 64 else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ConfigError(f"{KEY_VARIABLE} is neither hex nor base64") from None
