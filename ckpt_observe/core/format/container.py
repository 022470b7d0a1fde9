r"""The bytes of a stored checkpoint: one line of JSON that people can read, then the payload.

    {"checkpoint":1,"id":"...","task":"...", ... ,"digest":"sha256:...", ... ,"seal":"..."}\n<payload>

The seal is a hash of the rest of the line, so damage to the header is detected without reading the payload. The header contains the
digest of the payload.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from ckpt_observe.core.format import parallel
from ckpt_observe.core.format.blob import Blob, Buffer, DeferredHeadBlob, safe_encode
from ckpt_observe.core.model import FORMAT_VERSION, CheckpointInfo, KeyInfo
from ckpt_observe.errors import CapacityError, CompatibilityError, IntegrityError, SerializationError

MAX_HEADER = 16 * 1024 * 1024
"""Bytes of the longest header that is written or read."""
MAX_DEPTH = 100
"""Levels to which metadata may be nested. How deep JSON can be read depends on the reader's call stack; this depth always works."""

ComputeDigests = Callable[[], tuple[str, dict[str, KeyInfo]]]
"""Returns the digest of a payload, and its keys with their digests."""

_START = b'{"checkpoint":'
_SEAL = b',"seal":"'
_END = b'"}\n'
_TAIL = len(_SEAL) + 32 + len(_END)
_ALIGNMENT = 64
"""Bytes to which the payload of an `arrays` checkpoint is aligned: computing on unaligned arrays takes twice as long."""
_SMALL = 16 * 1024
"""Up to this size, copying bytes is cheaper than creating a view."""

_encode = safe_encode(msgspec.json.Encoder())
_decoder = msgspec.json.Decoder(CheckpointInfo)


_DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for invalid headers. UnicodeDecodeError is not one of its own errors."""


class _Version(msgspec.Struct):
    checkpoint: int


_version_decoder = msgspec.json.Decoder(_Version)


def pack(info: CheckpointInfo, payload: Blob) -> Blob:
    """Return the bytes to store, and set `info.header_size`."""
    header = _encode_header(info)
    msgspec.structs.force_setattr(info, "header_size", len(header))
    return Blob((header, *payload.pieces))


def pack_large(info: CheckpointInfo, payload: Blob, compute_digests: ComputeDigests) -> Blob:
    """Like `pack`, but `info` has placeholders for digests. They are computed while a store writes the payload, and then set in `info`."""
    msgspec.structs.force_setattr(info, "header_size", len(_encode_header(info)))
    digests = parallel.start(compute_digests)

    def head() -> bytes:
        digest, keys = digests.result()
        msgspec.structs.force_setattr(info, "digest", digest)
        msgspec.structs.force_setattr(info, "keys", keys)
        return _encode_header(msgspec.structs.replace(info, header_size=0))  # the size is not part of the header

    return DeferredHeadBlob(head, info.header_size, payload)


def read_header(line: Buffer) -> CheckpointInfo:
    """Return the header at the start of these bytes, which may continue after it.

    IntegrityError if it is damaged; CompatibilityError if its version is newer than this program.
    """
    text = _first_line(line)
    body = text[:-_TAIL]
    if text[-_TAIL:] != _SEAL + _seal(body) + _END:
        raise _seal_error(text)
    info = _decode_header(text)
    msgspec.structs.force_setattr(info, "header_size", len(text))
    return info


def split(stored: Buffer) -> tuple[CheckpointInfo, Buffer]:
    """Return header and payload of a complete stored checkpoint. IntegrityError if the payload has another size than the header says."""
    info = read_header(stored)
    whole = stored if type(stored) is bytes and len(stored) <= _SMALL else memoryview(stored)
    payload = whole[info.header_size :]
    if len(payload) != info.payload_size:
        short = len(payload) < info.payload_size
        raise IntegrityError(
            f"checkpoint {info.id!r} of {info.task!r} has a payload of {len(payload)} bytes, but its header says {info.payload_size}",
            code="integrity.truncated" if short else "integrity.size_mismatch",
        )
    return info, payload


def nesting_depth(metadata: dict[str, Any]) -> int:
    """Return how deep metadata is nested. Not recursive, so that no depth exceeds the call stack."""
    depth, level = 0, [msgspec.to_builtins(metadata)]
    while containers := [value for value in level if isinstance(value, (dict, list, tuple))]:
        depth += 1
        level = [child for value in containers for child in (value.values() if isinstance(value, dict) else value)]
    return depth


def _encode_header(info: CheckpointInfo) -> bytes:
    try:
        body = bytes(_encode(info)[:-1])
        too_deep = bool(info.metadata) and body.count(b"[") + body.count(b"{") > MAX_DEPTH and nesting_depth(info.metadata) > MAX_DEPTH
    except (TypeError, ValueError, RecursionError) as error:
        raise SerializationError(f"cannot encode the metadata as JSON: {error}; use plain JSON types") from error
    if too_deep:
        raise SerializationError(f"the metadata is nested more than {MAX_DEPTH} levels deep, which not every reader can load; flatten it")
    if len(body) + _TAIL > MAX_HEADER:
        text = f"the header has {len(body)} bytes, but at most {MAX_HEADER} are allowed: shorten the metadata or the names of keys"
        raise CapacityError(text, code="storage.too_large")
    if info.format == "arrays":
        body += b" " * (-(len(body) + _TAIL) % _ALIGNMENT)
    return body + _SEAL + _seal(body) + _END


def _seal(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()


def _first_line(stored: Buffer) -> bytes:
    if isinstance(stored, memoryview):
        stored = bytes(stored[:MAX_HEADER])
    if stored[: len(_START)] != _START:
        is_cut = bool(stored) and _START.startswith(bytes(stored))
        code = "integrity.truncated" if is_cut else "integrity.malformed"
        raise IntegrityError("these bytes do not start with the header of a checkpoint", code=code)
    end = stored.find(b"\n", 0, MAX_HEADER) + 1
    if not end:
        raise IntegrityError("the header of this checkpoint has no end of line: the checkpoint is truncated", code="integrity.truncated")
    return bytes(stored[:end])


def _seal_error(text: bytes) -> CompatibilityError | IntegrityError:
    """Return the error for a wrong seal: damage, unless the version is newer, because that may use another seal."""
    try:
        version = _version_decoder.decode(text).checkpoint
    except _DECODE_ERRORS:
        version = FORMAT_VERSION
    if version > FORMAT_VERSION:
        return _version_error(version)
    return IntegrityError("the header of this checkpoint is damaged: its seal does not match", code="integrity.checksum_mismatch")


def _decode_header(text: bytes) -> CheckpointInfo:
    try:
        info = _decoder.decode(text)
    except _DECODE_ERRORS as error:
        raise IntegrityError(f"cannot decode the header of this checkpoint: {error}", code="integrity.malformed") from error
    if info.version > FORMAT_VERSION:
        raise _version_error(info.version)
    return info


def _version_error(version: int) -> CompatibilityError:
    text = f"this checkpoint has format version {version}, but this program reads up to {FORMAT_VERSION}: upgrade ckpt-observe"
    return CompatibilityError(text)
