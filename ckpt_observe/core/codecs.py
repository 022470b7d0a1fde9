"""Compression: gzip, zstd and lz4.

A document over 4 MiB is compressed in parts on several threads, and the compressed parts are concatenated, which all three formats
allow. Such a document is never copied as a whole.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from ckpt_observe.core.format import parallel
from ckpt_observe.core.format.blob import Blob, Buffer, split_evenly
from ckpt_observe.errors import CompressionError, MissingExtraError

_PART = 4 * 1024 * 1024
_READ = 64 * 1024
"""Bytes passed to a decompressor per call. Small, because the decompressor copies its unused input whenever a part ends."""
_OUTPUT = 16 * 1024 * 1024
"""Bytes that a decompressor may produce per call. Some codecs allocate all of it in advance."""


class Codec(Protocol):
    """Compresses and decompresses bytes."""

    name: str
    """Recorded in the header of a checkpoint."""

    def compress(self, data: Buffer) -> bytes:
        """Return the data compressed. Concatenated results must decompress to the concatenated data."""
        ...

    def decompress(self, data: Buffer, size: int) -> Buffer:
        """Return the original data, exactly `size` bytes. CompressionError if it would be more or fewer; stops before it produces more."""
        ...


class Stream(Protocol):
    """The interface that incremental decompressors of Python's compression modules have in common."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: Buffer, max_length: int) -> bytes: ...


def compress_document(codec: Codec, document: Blob) -> Blob:
    """Return the document compressed; if it is over 4 MiB, in parts and in parallel."""
    if len(document) <= _PART:
        return Blob((codec.compress(document.joined()),))
    parts = split_evenly(document, _PART)
    return Blob(parallel.map_all(lambda views: codec.compress(views[0] if len(views) == 1 else b"".join(views)), parts))


def decompress_parts(new_stream: Callable[[], Stream], data: Buffer, size: int) -> bytearray:
    """Return the `size` bytes that all concatenated parts decompress to, or raise CompressionError. Each part needs a new stream."""
    result = bytearray()
    view = memoryview(data)
    inputs = (view[start : start + _READ] for start in range(0, len(view), _READ))
    stream, pending, size_at_last_end = new_stream(), next(inputs, b""), -1
    while True:
        output = stream.decompress(pending, min(size + 1 - len(result), _OUTPUT))
        result += output
        if len(result) > size:
            raise CompressionError(f"the data decompresses to more than the {size} bytes that its header declares", code="compression.bomb")
        if stream.eof:
            pending = stream.unused_data or next(inputs, b"")
            if not pending or len(result) == size_at_last_end:  # the end, or an empty part: there could be any number of those
                break
            stream, size_at_last_end = new_stream(), len(result)
        elif not output and not pending:
            break
        else:
            pending = next(inputs, b"") if stream.needs_input else b""
    if len(result) < size or not stream.eof or pending:
        raise CompressionError(f"the compressed data is damaged: got {len(result)} of {size} bytes", code="compression.malformed")
    return result


class GzipCodec:
    """gzip, which every tool can read. Level 6 is gzip's default; higher levels gain little."""

    name = "gzip"

    def compress(self, data: Buffer) -> bytes:
        return gzip.compress(data, compresslevel=6, mtime=0)  # no timestamp, so that equal states give equal bytes

    def decompress(self, data: Buffer, size: int) -> bytearray:
        try:
            return decompress_parts(_GzipStream, data, size)
        except zlib.error as error:
            raise CompressionError(f"the gzip data is damaged: {error}") from error


class _GzipStream:
    """Adapts zlib's decompressor to `Stream`."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(16 + zlib.MAX_WBITS)  # 16: with a gzip header

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def needs_input(self) -> bool:
        return not self._stream.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: Buffer, max_length: int) -> bytes:
        return self._stream.decompress(data or self._stream.unconsumed_tail, max_length)


class ZstdCodec:
    """zstd: faster and smaller than gzip, the recommended choice. Level 3 is zstd's default. From `backports.zstd` before Python 3.14."""

    name = "zstd"

    def __init__(self) -> None:
        if sys.version_info >= (3, 14):
            from compression import zstd  # noqa: PLC0415 - imported when compression is used
        else:
            from backports import zstd  # noqa: PLC0415
        self._zstd: Any = zstd
        self._options = {zstd.CompressionParameter.compression_level: 3, zstd.CompressionParameter.checksum_flag: 1}

    def compress(self, data: Buffer) -> bytes:
        return bytes(self._zstd.compress(data, options=self._options))

    def decompress(self, data: Buffer, size: int) -> bytearray:
        try:
            return decompress_parts(self._zstd.ZstdDecompressor, data, size)
        except self._zstd.ZstdError as error:
            raise CompressionError(f"the zstd data is damaged: {error}") from error


class Lz4Codec:
    """lz4: the fastest, with the least compression. Uses the frame format with its checksum. Extra `lz4`."""

    name = "lz4"

    def __init__(self) -> None:
        try:
            from lz4 import frame  # noqa: PLC0415 - optional
        except ImportError as error:
            raise MissingExtraError("lz4 compression", "lz4") from error
        self._frame: Any = frame

    def compress(self, data: Buffer) -> bytes:
        return bytes(self._frame.compress(data, content_checksum=True))

    def decompress(self, data: Buffer, size: int) -> bytearray:
        try:
            return decompress_parts(self._frame.LZ4FrameDecompressor, data, size)
        except (RuntimeError, EOFError) as error:
            raise CompressionError(f"the lz4 data is damaged: {error}") from error
