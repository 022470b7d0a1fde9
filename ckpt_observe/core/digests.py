"""Digests of content, written as `algorithm:hex`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ckpt_observe.core.blob import Buffer

ALGORITHM = "sha256"
LARGE_ALGORITHM = "sha256-4m"
"""sha256 of the sha256 of each 4 MiB."""
UNKNOWN = f"{LARGE_ALGORITHM}:{'0' * 64}"
"""Stands for a digest that is not known yet, and is as long as it."""
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
    """Digest of the digests of each chunk. Chunks are hashed side by side: hashing is what a large save would wait for."""
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        tree = hashlib.sha256()
        for digest in pool.map(_chunk, _chunks(pieces)):
            tree.update(digest)
    return f"{LARGE_ALGORITHM}:{tree.hexdigest()}"


def begin(pieces: Iterable[Buffer]) -> Future[str]:
    """Begin `of_large` on another thread, while this one writes the same pieces."""
    worker = ThreadPoolExecutor(1, thread_name_prefix="ckpt-digest")
    digest = worker.submit(of_large, pieces)
    worker.shutdown(wait=False)
    return digest


def _chunks(pieces: Iterable[Buffer]) -> Iterator[list[memoryview]]:
    """The bytes in runs of CHUNK, each as views, without copying."""
    views: list[memoryview] = []
    room = CHUNK
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            views.append(rest[:room])
            room -= len(views[-1])
            rest = rest[len(views[-1]) :]
            if not room:
                yield views
                views, room = [], CHUNK
    if views:
        yield views


def _chunk(views: list[memoryview]) -> bytes:
    digest = hashlib.sha256()
    for view in views:
        digest.update(view)
    return digest.digest()


def of_key(value: Buffer) -> str:
    """A short digest of one key's bytes: enough to tell a changed value from an unchanged one."""
    return hashlib.blake2b(value, digest_size=12).hexdigest()


def fits(digest: str, pieces: Iterable[Buffer]) -> bool:
    algorithm = digest.partition(":")[0]
    if algorithm == LARGE_ALGORITHM:
        return of_large(pieces) == digest
    return algorithm in _KNOWN and of(pieces, algorithm) == digest
