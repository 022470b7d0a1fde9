r"""How a checkpoint lies in a store: one line of JSON that people can read, then the payload.

    {"checkpoint":1,"id":"...","task":"...", ... ,"digest":"sha256:...", ... ,"seal":"..."}\n<payload>

The seal is a hash of the line before it, so that a flipped bit in a header is noticed without reading the payload; the
payload has its digest inside the sealed header.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from ckpt_observe.core import parallel
from ckpt_observe.core.blob import Blob, Buffer, HeadLast
from ckpt_observe.core.model import FORMAT_VERSION, CheckpointInfo, KeyInfo
from ckpt_observe.errors import CapacityError, CompatibilityError, IntegrityError, SerializationError

MAX_HEADER = 16 * 1024 * 1024
"""A header lists keys; more than this is not one of ours."""

Hashed = Callable[[], tuple[str, dict[str, KeyInfo]]]
"""Finds the digest of a payload, and the keys with theirs."""

_START = b'{"checkpoint":'
_SEAL = b',"seal":"'
_END = b'"}\n'
_TAIL = len(_SEAL) + 32 + len(_END)

_ALIGNMENT = 64
"""Of arrays behind a header: those that lie elsewhere are computed with at half the speed."""

_SMALL = 16 * 1024
"""Bytes up to which a copy costs less than a view."""

DEEPEST = 100
"""Levels of metadata. How many a reader takes depends on how deep in its own calls it is: what was written must be read anywhere."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(CheckpointInfo)


class _Version(msgspec.Struct):
    checkpoint: int


_version_decoder = msgspec.json.Decoder(_Version)


def _seal(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()


def pack(info: CheckpointInfo, payload: Blob) -> Blob:
    """The bytes to store; `info.header_size` is set to the length of the line in front."""
    header = _header(info)
    msgspec.structs.force_setattr(info, "header_size", len(header))
    return Blob((header, *payload.pieces))


def pack_large(info: CheckpointInfo, payload: Blob, hashed: Hashed) -> Blob:
    """The same for a payload whose digests are not known yet: they are found while a store writes, and those of `info` set to them."""
    msgspec.structs.force_setattr(info, "header_size", len(_header(info)))
    found = parallel.begin(hashed)

    def head() -> bytes:
        digest, keys = found.result()
        msgspec.structs.force_setattr(info, "digest", digest)
        msgspec.structs.force_setattr(info, "keys", keys)
        return _header(msgspec.structs.replace(info, header_size=0))  # which is never inside it

    return HeadLast(head, info.header_size, payload)


def _header(info: CheckpointInfo) -> bytes:
    try:
        body = _encoder.encode(info)[:-1]
        deep = bool(info.metadata) and body.count(b"[") + body.count(b"{") > DEEPEST and depth_of(info.metadata) > DEEPEST
    except (TypeError, ValueError, RecursionError) as error:
        raise SerializationError(f"the metadata cannot become JSON: {error}") from error
    if deep:
        raise SerializationError(f"the metadata are nested more than {DEEPEST} deep: not every reader could take them")
    if len(body) + _TAIL > MAX_HEADER:
        text = f"the header would have {len(body)} bytes, and {MAX_HEADER} are read: shorten the metadata, or names of keys"
        raise CapacityError(text, code="storage.too_large")
    if info.format == "arrays":
        body += b" " * (-(len(body) + _TAIL) % _ALIGNMENT)
    return body + _SEAL + _seal(body) + _END


def depth_of(metadata: dict[str, Any]) -> int:
    """Levels of nesting, counted without calls inside of calls."""
    depth, level = 0, [msgspec.to_builtins(metadata)]
    while nested := [value for value in level if isinstance(value, (dict, list, tuple))]:
        depth += 1
        level = [below for value in nested for below in (value.values() if isinstance(value, dict) else value)]
    return depth


def read_header(line: Buffer) -> CheckpointInfo:
    """The header that a stored checkpoint begins with; `line` may go on beyond it."""
    text = _first_line(line)
    body = text[:-_TAIL]
    if text[-_TAIL:] != _SEAL + _seal(body) + _END:
        raise _unreadable(text)
    info = _decode(text)
    msgspec.structs.force_setattr(info, "header_size", len(text))
    return info


def split(stored: Buffer) -> tuple[CheckpointInfo, Buffer]:
    """Header and payload of a whole stored checkpoint."""
    info = read_header(stored)
    whole = stored if type(stored) is bytes and len(stored) <= _SMALL else memoryview(stored)
    payload = whole[info.header_size :]
    if len(payload) != info.payload_size:
        short = len(payload) < info.payload_size
        raise IntegrityError(
            f"checkpoint {info.id!r} of {info.task!r} has {len(payload)} bytes of payload, its header says {info.payload_size}",
            code="integrity.truncated" if short else "integrity.size_mismatch",
        )
    return info, payload


def _first_line(stored: Buffer) -> bytes:
    if isinstance(stored, memoryview):
        stored = bytes(stored[:MAX_HEADER])
    if stored[: len(_START)] != _START:
        cut = bool(stored) and _START.startswith(bytes(stored))
        code = "integrity.truncated" if cut else "integrity.malformed"
        raise IntegrityError("these bytes do not begin like a checkpoint", code=code)
    end = stored.find(b"\n", 0, MAX_HEADER) + 1
    if not end:
        raise IntegrityError("the header line of this checkpoint has no end: it was cut", code="integrity.truncated")
    return bytes(stored[:end])


def _unreadable(text: bytes) -> CompatibilityError | IntegrityError:
    """A newer version may seal differently, so the version is asked before damage is reported."""
    try:
        version = _version_decoder.decode(text).checkpoint
    except (msgspec.DecodeError, RecursionError):
        version = FORMAT_VERSION
    if version > FORMAT_VERSION:
        return _newer(version)
    return IntegrityError("the header of this checkpoint was altered: its seal does not fit", code="integrity.checksum_mismatch")


def _decode(text: bytes) -> CheckpointInfo:
    try:
        info = _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise IntegrityError(f"the header of this checkpoint does not read: {error}", code="integrity.malformed") from error
    if info.version > FORMAT_VERSION:
        raise _newer(info.version)
    return info


def _newer(version: int) -> CompatibilityError:
    return CompatibilityError(f"this checkpoint has format {version}, this program reads up to {FORMAT_VERSION}: upgrade ckpt-observe")
