"""Digests of content, written as `algorithm:hex`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ckpt_observe.core import parallel
from ckpt_observe.core.blob import Buffer, parts

Tree = Any
"""A hash that takes the digests of chunks."""

ALGORITHM = "sha256"
LARGE_ALGORITHM = "sha256-4m"
"""sha256 of the sha256 of each 4 MiB."""
KEYED_ALGORITHM = "sha256-keys"
"""sha256 of what stands before the keys, of the digest of all that are small, and of each that is large: all of the kind above."""
UNKNOWN, UNKNOWN_KEYED = (f"{algorithm}:{'0' * 64}" for algorithm in (LARGE_ALGORITHM, KEYED_ALGORITHM))
"""Stand for a digest that is not known yet, and are as long as it."""
CHUNK = 4 * 1024 * 1024
LARGE = 8 * CHUNK
"""Bytes from which several threads are worth starting."""

_KNOWN: dict[str, Callable[[], Any]] = {"sha256": hashlib.sha256, "blake2b": hashlib.blake2b}


def of(pieces: Iterable[Buffer], algorithm: str = ALGORITHM) -> str:
    """Digest of the pieces one after the other."""
    digest = _KNOWN[algorithm]()
    for piece in pieces:
        digest.update(piece)
    return f"{algorithm}:{digest.hexdigest()}"


def of_large(pieces: Iterable[Buffer]) -> str:
    """Digest of the digests of each chunk."""
    return of_each((pieces,))[0]


def of_each(blobs: Sequence[Iterable[Buffer]]) -> list[str]:
    """`of_large` of each. The chunks of all are hashed side by side: hashing is what a large save would wait for."""
    trees = [hashlib.sha256() for _ in blobs]
    chunks = ((tree, views) for tree, pieces in zip(trees, blobs, strict=True) for views in parts(pieces, CHUNK))
    for tree, digest in parallel.each(_chunk, chunks):
        tree.update(digest)
    return [f"{LARGE_ALGORITHM}:{tree.hexdigest()}" for tree in trees]


def of_keyed(first: Buffer, keys: Iterable[tuple[str, Iterable[Buffer]]]) -> str:
    """Digest of what stands first and of the digest and bytes of each key behind it; the bytes of large ones are not hashed again."""
    large: list[str] = []
    small: list[Buffer] = []
    for own, pieces in keys:
        if own.startswith(LARGE_ALGORITHM):
            large.append(own)
        else:
            small += pieces
    return f"{KEYED_ALGORITHM}:{hashlib.sha256(bytes(first) + ' '.join([of_large(small), *large]).encode()).hexdigest()}"


def _chunk(chunk: tuple[Tree, list[memoryview]]) -> tuple[Tree, bytes]:
    tree, views = chunk
    digest = hashlib.sha256()
    for view in views:
        digest.update(view)
    return tree, digest.digest()


def of_key(value: Buffer) -> str:
    """A short digest of one key's bytes: enough to tell a changed value from an unchanged one."""
    return hashlib.blake2b(value, digest_size=12).hexdigest()


def fits_key(digest: str, value: Buffer) -> bool:
    """Whether these are the bytes of the key with that digest, whichever kind it is."""
    return digest == (of_large((value,)) if digest.startswith(LARGE_ALGORITHM) else of_key(value))


def fits(digest: str, pieces: Iterable[Buffer]) -> bool:
    algorithm = digest.partition(":")[0]
    if algorithm in _KNOWN:
        return of(pieces, algorithm) == digest
    return algorithm == LARGE_ALGORITHM and of_large(pieces) == digest
