r"""The bytes of a stored checkpoint: one line of JSON that people can read, then the payload.

    {"checkpoint":2,"id":"...","task":"...", ... ,"digest":"...", ... ,"seal":"..."}\n<payload>

The seal is a hash of the rest of the line, so damage to the header is detected without reading the payload. The header contains the
digest of the payload.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from ckpt_observe.core.format import header, parallel
from ckpt_observe.core.format.blob import Blob, Buffer, DeferredHeadBlob
from ckpt_observe.core.model import CheckpointInfo, KeyInfo
from ckpt_observe.errors import CapacityError, IntegrityError, SerializationError

MAX_HEADER = 16 * 1024 * 1024
"""Bytes of the longest header that is written or read."""
MAX_DEPTH = 100
"""Levels to which metadata may be nested. How deep JSON can be read depends on the reader's call stack; this depth always works."""

ComputeDigests = Callable[[], tuple[str, dict[str, KeyInfo]]]
"""Returns the digest of a payload, and its keys with their digests."""

_SEAL = b',"seal":"'
_END = b'"}\n'
_TAIL = len(_SEAL) + 11 + len(_END)
_ALIGNMENT = 64
"""Bytes to which the payload of an `arrays` checkpoint is aligned: computing on unaligned arrays takes twice as long."""
_SMALL = 16 * 1024
"""Up to this size, copying bytes is cheaper than creating a view."""


def pack(info: CheckpointInfo, payload: Blob) -> Blob:
    """Return the bytes to store, and set `info.header_size`."""
    line = _encode_line(info)
    msgspec.structs.force_setattr(info, "header_size", len(line))
    return Blob((line, *payload.pieces))


def pack_large(info: CheckpointInfo, payload: Blob, compute_digests: ComputeDigests) -> Blob:
    """Like `pack`, but `info` has placeholders for digests. They are computed while a store writes the payload, and then set in `info`."""
    msgspec.structs.force_setattr(info, "header_size", len(_encode_line(info)))
    digests = parallel.start(compute_digests)

    def head() -> bytes:
        digest, keys = digests.result()
        msgspec.structs.force_setattr(info, "digest", digest)
        msgspec.structs.force_setattr(info, "keys", keys)
        return _encode_line(info)

    return DeferredHeadBlob(head, info.header_size, payload, lambda: parallel.start(lambda: compute_digests()[0]))


def read_header(line: Buffer) -> CheckpointInfo:
    """Return the header at the start of these bytes, which may continue after it.

    IntegrityError if it is damaged; CompatibilityError if its version is newer than this program.
    """
    text = _first_line(line)
    if not _is_sealed(text):
        header.check_version(text)  # a newer version may have another seal
        raise IntegrityError("the header of this checkpoint is damaged: its seal does not match", code="integrity.checksum_mismatch")
    info = header.decode(text)
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


def _encode_line(info: CheckpointInfo) -> bytes:
    try:
        body = header.encode(info)
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
    return binascii.b2a_base64(hashlib.blake2b(body, digest_size=8).digest(), newline=False)[:-1]  # without padding


def _is_sealed(text: bytes) -> bool:
    body, _, seal = text.rpartition(_SEAL)
    if text.startswith(header.VERSION_1):
        return seal == hashlib.blake2b(body, digest_size=16).hexdigest().encode() + _END
    return seal == _seal(body) + _END


def _first_line(stored: Buffer) -> bytes:
    if isinstance(stored, memoryview):
        stored = bytes(stored[:MAX_HEADER])
    if stored[: len(header.START)] != header.START:
        is_cut = bool(stored) and header.START.startswith(bytes(stored))
        code = "integrity.truncated" if is_cut else "integrity.malformed"
        raise IntegrityError("these bytes do not start with the header of a checkpoint", code=code)
    end = stored.find(b"\n", 0, MAX_HEADER) + 1
    if not end:
        raise IntegrityError("the header of this checkpoint has no end of line: the checkpoint is truncated", code="integrity.truncated")
    return bytes(stored[:end])
