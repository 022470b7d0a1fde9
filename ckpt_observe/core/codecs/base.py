"""The contract of a codec: fewer bytes and back, never more than declared.

A large document is compressed in parts, side by side, and the parts stand one after the other, as gzip, zstd and lz4 all allow: it is never
in one place a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ckpt_observe.core import parallel
from ckpt_observe.core.blob import Blob, Buffer, parts
from ckpt_observe.core.registry import Registry
from ckpt_observe.errors import CompressionError

_PART = 4 * 1024 * 1024
_READ = 64 * 1024
"""Bytes handed to a decompressor at a time: what it leaves of them is copied for each part that ends in them."""
_STEP = 16 * 1024 * 1024
"""Bytes that decompression makes at a time: some codecs make room for as many as they are allowed."""


class Codec(Protocol):
    """Makes bytes fewer, and as many again."""

    name: str
    """As the header of a checkpoint names it."""

    def compress(self, data: Buffer) -> bytes:
        """The bytes in fewer. What this makes of several runs of bytes, put one after the other, is decompressed to all of them."""
        ...

    def decompress(self, data: Buffer, size: int) -> Buffer:
        """The bytes again, exactly `size` of them. Never makes more than that: beyond is CompressionError."""
        ...


class Stream(Protocol):
    """One compressed run of bytes, as Python's decompressors read it."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: Buffer, max_length: int) -> bytes: ...


def compressed(codec: Codec, document: Blob) -> Blob:
    """The document, compressed at once if it is small."""
    if len(document) <= _PART:
        return Blob((codec.compress(document.joined()),))
    return Blob(parallel.each(lambda views: codec.compress(views[0] if len(views) == 1 else b"".join(views)), parts(document, _PART)))


def decompressed(begin: Callable[[], Stream], data: Buffer, size: int) -> bytearray:
    """The `size` bytes that all compressed runs in the data become."""
    result = bytearray()
    view = memoryview(data)
    runs = (view[start : start + _READ] for start in range(0, len(view), _READ))
    stream, given, ended_at = begin(), next(runs, b""), -1
    while True:
        made = stream.decompress(given, min(size + 1 - len(result), _STEP))
        result += made
        if len(result) > size:
            raise CompressionError(f"decompression goes beyond the {size} bytes that the checkpoint declares", code="compression.bomb")
        if stream.eof:
            given = stream.unused_data or next(runs, b"")
            if not given or len(result) == ended_at:  # all, or a second part that holds nothing: of those there could be any number
                break
            stream, ended_at = begin(), len(result)
        elif not made and not given:
            break
        else:
            given = next(runs, b"") if stream.needs_input else b""
    if len(result) < size or not stream.eof or given:
        raise CompressionError(f"decompression gave {len(result)} of {size} bytes", code="compression.malformed")
    return result


codecs: Registry[Codec] = Registry(
    "compression",
    {
        "gzip": "ckpt_observe.core.codecs.gzip_:GzipCodec",
        "lz4": "ckpt_observe.core.codecs.lz4_:Lz4Codec",
        "zstd": "ckpt_observe.core.codecs.zstd:ZstdCodec",
    },
)
