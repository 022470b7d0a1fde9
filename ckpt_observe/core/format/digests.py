"""Digests of stored content, written as `algorithm:hex`, of keys as base64, and the check of a payload against its header."""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ckpt_observe.core.format import parallel
from ckpt_observe.core.format.blob import Buffer, split_evenly, split_sizes
from ckpt_observe.core.model import CheckpointInfo

HashTree = Any
"""A hash object that is fed with the digests of chunks."""

ALGORITHM = "sha256"
LARGE_ALGORITHM = "sha256-4m"
"""sha256 over the sha256 digests of all 4 MiB chunks."""
KEYED_ALGORITHM = "sha256-keys"
"""sha256 over the bytes before the keys, one digest of all small keys, and one digest for each large key; these digests are `sha256-4m`."""
PENDING, PENDING_KEYED = (f"{algorithm}:{'0' * 64}" for algorithm in (LARGE_ALGORITHM, KEYED_ALGORITHM))
"""Placeholders for digests that are still being computed. They have the final length."""
SHORT_KEY_SIZE = 64
"""Bytes. Digests of values up to this size have 48 bits, of others 96: incremental saves refer only to larger values."""
CHUNK = 4 * 1024 * 1024
LARGE = 8 * CHUNK
"""Payloads of at least this many bytes are hashed by several threads, while the store writes them."""

_HASHES: dict[str, Callable[[], Any]] = {"sha256": hashlib.sha256, "blake2b": hashlib.blake2b}
_MISMATCH = "its content does not match the digest in its header"


def compute(pieces: Iterable[Buffer], algorithm: str = ALGORITHM) -> str:
    """Return the digest of the concatenated pieces."""
    digest = _HASHES[algorithm]()
    for piece in pieces:
        digest.update(piece)
    return f"{algorithm}:{digest.hexdigest()}"


def compute_large(pieces: Iterable[Buffer]) -> str:
    """Return the `sha256-4m` digest of the concatenated pieces."""
    return compute_each((pieces,))[0]


def compute_each(blobs: Sequence[Iterable[Buffer]]) -> list[str]:
    """Return `compute_large` of each blob. The chunks of all blobs are hashed in parallel, because a large save waits for this."""
    trees = [hashlib.sha256() for _ in blobs]
    chunks = ((tree, views) for tree, pieces in zip(trees, blobs, strict=True) for views in split_evenly(pieces, CHUNK))
    for tree, digest in parallel.map_all(_hash_chunk, chunks):
        tree.update(digest)
    return [f"{LARGE_ALGORITHM}:{tree.hexdigest()}" for tree in trees]


def compute_keyed(prefix: Buffer, keys: Iterable[tuple[str, Iterable[Buffer]]]) -> str:
    """Return the `sha256-keys` digest of a payload: `prefix`, the bytes before the keys, and each key's digest and bytes.

    For a large key, whose digest is `sha256-4m`, the digest is used and the bytes are not hashed again.
    """
    large: list[str] = []
    small: list[Buffer] = []
    for key_digest, pieces in keys:
        if key_digest.startswith(LARGE_ALGORITHM):
            large.append(key_digest)
        else:
            small += pieces
    return f"{KEYED_ALGORITHM}:{hashlib.sha256(bytes(prefix) + ' '.join([compute_large(small), *large]).encode()).hexdigest()}"


def compute_key(value: Buffer) -> str:
    """Return the short digest of one key's bytes. It detects a changed or damaged value."""
    digest = hashlib.blake2b(value, digest_size=12).digest()
    return encode_base64(digest[:6] if len(value) <= SHORT_KEY_SIZE else digest)


def encode_base64(digest: bytes) -> str:
    """Return a digest as base64 without padding."""
    return binascii.b2a_base64(digest, newline=False).rstrip(b"=").decode()


def matches(digest: str, pieces: Iterable[Buffer]) -> bool:
    """Return whether the pieces have this digest. Always False for `sha256-keys`, which `find_damage` checks."""
    algorithm = digest.partition(":")[0]
    if algorithm in _HASHES:
        return compute(pieces, algorithm) == digest
    return algorithm == LARGE_ALGORITHM and compute_large(pieces) == digest


def matches_key(digest: str, value: Buffer) -> bool:
    """Return whether the bytes of a key have this digest, short or large."""
    return digest == (compute_large((value,)) if digest.startswith(LARGE_ALGORITHM) else compute_key(value))


def find_damage(info: CheckpointInfo, payload: Sequence[Buffer]) -> str | None:
    """Return what is wrong with the pieces of a payload; None if nothing is. If it was hashed by key, the text names damaged large keys."""
    if matches(info.digest, payload):  # most payloads have a single digest
        return None
    if info.digest.startswith(KEYED_ALGORITHM):
        return _find_damaged_keys(info, payload)
    return _MISMATCH


def _find_damaged_keys(info: CheckpointInfo, payload: Sequence[Buffer]) -> str | None:
    stored = {name: key for name, key in info.keys.items() if not key.base}
    start = max(0, sum(map(len, payload)) - sum(key.size for key in stored.values()))
    prefix, *parts = split_sizes(payload, (start, *(key.size for key in stored.values())))
    values = dict(zip(stored, parts, strict=True))
    large = {name: value for name, value in values.items() if stored[name].digest.startswith(LARGE_ALGORITHM)}
    actual = dict(zip(large, compute_each(list(large.values())), strict=True))
    damaged = [name for name, digest in actual.items() if digest != stored[name].digest]
    if damaged:
        return f"the content of {', '.join(map(repr, damaged[:10]))} does not match the digest in the header"
    whole = compute_keyed(b"".join(prefix), [(stored[name].digest, value) for name, value in values.items()])
    return None if whole == info.digest else _MISMATCH


def _hash_chunk(chunk: tuple[HashTree, list[memoryview]]) -> tuple[HashTree, bytes]:
    tree, views = chunk
    digest = hashlib.sha256()
    for view in views:
        digest.update(view)
    return tree, digest.digest()
