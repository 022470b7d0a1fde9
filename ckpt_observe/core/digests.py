"""Digests of content, written as `algorithm:hex`."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from ckpt_observe.core.blob import Buffer

ALGORITHM = "sha256"
_KNOWN = frozenset({"sha256", "blake2b"})


def of(pieces: Iterable[Buffer], algorithm: str = ALGORITHM) -> str:
    """Digest of the pieces one after the other."""
    digest = hashlib.new(algorithm)
    for piece in pieces:
        digest.update(piece)
    return f"{algorithm}:{digest.hexdigest()}"


def of_key(value: Buffer) -> str:
    """A short digest of one key's bytes: enough to tell a changed value from an unchanged one."""
    return hashlib.blake2b(value, digest_size=12).hexdigest()


def fits(digest: str, pieces: Iterable[Buffer]) -> bool:
    algorithm = digest.partition(":")[0]
    return algorithm in _KNOWN and hmac.compare_digest(of(pieces, algorithm), digest)
