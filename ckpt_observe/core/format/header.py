"""The header of a checkpoint as a line of JSON, before its seal.

Version 2 is compact, because the header is most of a small checkpoint: fields with their default are omitted, a key is a text such as
`list 869 Nj4nNehT/R4x6mUM`, digests are base64, and the time is omitted if the id contains it. Version 1, which is only read, has the
fields of `CheckpointInfo`.
"""

from __future__ import annotations

import binascii
from typing import Any, Final

import msgspec

from ckpt_observe.core.format.blob import safe_encode
from ckpt_observe.core.format.digests import SHORT_KEY_SIZE, encode_base64
from ckpt_observe.core.format.names import time_of_id
from ckpt_observe.core.model import FORMAT_VERSION, MAX_SIZE, CheckpointInfo, KeyInfo, Name, Size, Time
from ckpt_observe.errors import CompatibilityError, IntegrityError

START: Final = b'{"checkpoint":'
"""The first bytes of the headers of all versions."""
VERSION_1: Final = START + b"1,"

_STATUS, _FORMAT, _TYPE = "running", "json", "dict"
_SHA256 = "sha256:"
_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for invalid headers. UnicodeDecodeError is not one of its own errors."""


class _Sizes(msgspec.Struct, array_like=True, gc=False):
    serialized: Size
    payload: Size


class _Shape(msgspec.Struct, array_like=True, gc=False):
    depth: int
    items: int


class _KeyInBase(msgspec.Struct, array_like=True, gc=False):
    type: str
    size: Size
    digest: str
    base: str


class _Header(msgspec.Struct, kw_only=True, omit_defaults=True):
    version: int = msgspec.field(name="checkpoint")
    id: Name
    task: Name
    step: int | None = None
    status: str = _STATUS
    created: Time | None = None
    format: str = _FORMAT
    codec: str = "none"
    cipher: str = ""
    key_id: str = ""
    sizes: _Sizes
    digest: str
    type: str = _TYPE
    shape: _Shape
    keys: dict[str, str | _KeyInBase] = {}
    bases: tuple[Name, ...] = ()
    parent: Name | None = None
    parent_task: Name | None = None
    tags: tuple[str, ...] = ()
    context: dict[str, str] = {}
    metadata: dict[str, Any] = {}


class _Version(msgspec.Struct):
    checkpoint: int


_encode = safe_encode(msgspec.json.Encoder())
_decoder = msgspec.json.Decoder(_Header)
_decoder_of_version_1 = msgspec.json.Decoder(CheckpointInfo)
_version_decoder = msgspec.json.Decoder(_Version)


def encode(info: CheckpointInfo) -> bytes:
    """Return the header without its closing brace, to which the seal is added."""
    header = _Header(
        version=info.version,
        id=info.id,
        task=info.task,
        step=info.step,
        status=_or_same(info.status, _STATUS),
        created=None if time_of_id(info.id) == info.created else info.created,
        format=_or_same(info.format, _FORMAT),
        codec=_or_same(info.codec, "none"),
        cipher=info.cipher,
        key_id=info.key_id,
        sizes=_Sizes(info.serialized_size, info.payload_size),
        digest=encode_base64(bytes.fromhex(info.digest[len(_SHA256) :])) if info.digest.startswith(_SHA256) else info.digest,
        type=_or_same(info.state_type, _TYPE),
        shape=_Shape(info.depth, info.items),
        keys={name: _encode_key(key) for name, key in info.keys.items()},
        bases=info.bases,
        parent=info.parent,
        parent_task=info.parent_task,
        tags=info.tags,
        context=info.context,
        metadata=info.metadata,
    )
    return bytes(_encode(header)[:-1])


def decode(line: bytes) -> CheckpointInfo:
    """Return the header in a line whose seal was checked. IntegrityError if it is invalid, CompatibilityError if it is too new."""
    try:
        if line.startswith(VERSION_1):
            return _from_version_1(_decoder_of_version_1.decode(line))
        header = _decoder.decode(line)
        if header.version == FORMAT_VERSION:
            return _to_info(header)
        raise ValueError(f"unknown version {header.version}")
    except (*_DECODE_ERRORS, ValueError) as error:
        check_version(line)
        raise IntegrityError(f"cannot decode the header of this checkpoint: {error}", code="integrity.malformed") from error


def check_version(line: bytes) -> None:
    """Raise CompatibilityError if the header was written by a newer version of this program."""
    try:
        version = _version_decoder.decode(line).checkpoint
    except _DECODE_ERRORS:
        return
    if version > FORMAT_VERSION:
        text = f"this checkpoint has format version {version}, but this program reads up to {FORMAT_VERSION}: upgrade ckpt-observe"
        raise CompatibilityError(text)


def _encode_key(key: KeyInfo) -> str | _KeyInBase:
    return _KeyInBase(key.type, key.size, key.digest, key.base) if key.base else f"{key.type} {key.size} {key.digest}"


def _decode_keys(keys: dict[str, str | _KeyInBase]) -> dict[str, KeyInfo]:
    infos = {}
    for name, key in keys.items():  # one loop without calls: every load runs this
        if isinstance(key, str):
            type, text, digest = key.rsplit(" ", 2)  # a type may contain spaces
            size = int(text)
            if not 0 <= size <= MAX_SIZE:
                raise ValueError(f"a key has {size} bytes")
            infos[name] = KeyInfo(type, size, digest)
        else:
            infos[name] = KeyInfo(key.type, key.size, key.digest, key.base)
    return infos


def _or_same(value: str, default: str) -> str:
    """Return the default itself if the value is equal to it: msgspec omits only the same object."""
    return default if value == default else value


def _to_info(header: _Header) -> CheckpointInfo:
    created = header.created or time_of_id(header.id)
    if created is None:
        raise ValueError("it has no time")
    digest = header.digest if ":" in header.digest else _SHA256 + binascii.a2b_base64(header.digest + "=").hex()
    return CheckpointInfo(
        version=header.version,
        id=header.id,
        task=header.task,
        step=header.step,
        status=header.status,
        created=created,
        format=header.format,
        codec=header.codec,
        cipher=header.cipher,
        key_id=header.key_id,
        serialized_size=header.sizes.serialized,
        payload_size=header.sizes.payload,
        digest=digest,
        state_type=header.type,
        depth=header.shape.depth,
        items=header.shape.items,
        keys=_decode_keys(header.keys),
        bases=header.bases,
        parent=header.parent,
        parent_task=header.parent_task,
        tags=header.tags,
        context=header.context,
        metadata=header.metadata,
    )


def _from_version_1(info: CheckpointInfo) -> CheckpointInfo:
    """Convert the digests of keys, so that checkpoints of both versions can be compared."""
    keys = {name: msgspec.structs.replace(key, digest=_key_digest_of_version_1(key)) for name, key in info.keys.items()}
    return msgspec.structs.replace(info, keys=keys)


def _key_digest_of_version_1(key: KeyInfo) -> str:
    if not key.digest or ":" in key.digest:
        return key.digest
    digest = encode_base64(bytes.fromhex(key.digest))
    return digest[:8] if key.size <= SHORT_KEY_SIZE else digest
