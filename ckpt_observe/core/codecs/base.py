"""The contract of a codec: fewer bytes and back, never more than declared."""

from __future__ import annotations

from typing import Protocol

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.registry import Registry
from ckpt_observe.errors import CompressionError


class Codec(Protocol):
    """Makes bytes fewer, and as many again."""

    name: str
    """As the header of a checkpoint names it."""

    def compress(self, data: Buffer) -> bytes: ...

    def decompress(self, data: Buffer, size: int) -> bytes:
        """The bytes again, exactly `size` of them. Never makes more than that: beyond is CompressionError."""
        ...


def exactly(data: bytes, size: int, *, ended: bool) -> bytes:
    """The result of a bounded decompression, if it is whole and of the declared size."""
    if len(data) > size:
        raise CompressionError(f"decompression goes beyond the {size} bytes that the checkpoint declares", code="compression.bomb")
    if not ended or len(data) < size:
        raise CompressionError(f"decompression gave {len(data)} of {size} bytes", code="compression.malformed")
    return data


codecs: Registry[Codec] = Registry(
    "compression",
    {
        "gzip": "ckpt_observe.core.codecs.gzip_:GzipCodec",
        "lz4": "ckpt_observe.core.codecs.lz4_:Lz4Codec",
        "zstd": "ckpt_observe.core.codecs.zstd:ZstdCodec",
    },
)
