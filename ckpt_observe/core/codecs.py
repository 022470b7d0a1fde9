"""Compression: gzip, zstd and lz4.

A document over 4 MiB is compressed in parts on several threads, and the compressed parts are concatenated, which all three formats
allow. Such a document is never copied as a whole.
"""

from __future__ import annotations

import gzip
import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from ckpt_observe.core.format import parallel
from ckpt_observe.core.format.blob import Blob, Buffer, split_evenly
from ckpt_observe.errors import CompressionError, MissingExtraError
from ckpt_observe.support.host_exceptions import raise_host_exception

_PART = 4 * 1024 * 1024
_READ = 64 * 1024
"""Bytes passed to a decompressor per call. Small, because the decompressor copies its unused input whenever a part ends."""
_OUTPUT = 16 * 1024 * 1024
"""Bytes that a decompressor may produce per call. Some codecs allocate all of it in advance."""
_MAX_RATIO = 1100
"""Highest ratio of decompressed to compressed size of a large document. gzip reaches 1032, lz4 255."""
_PADDED_RATIO = 1000
"""Highest ratio that our zstd codec produces; zstd itself reaches 21,000, so a file of 200 kB could claim 4 GB of memory."""
_SMALL = 256 * 1024 * 1024
"""Bytes. Documents up to this size may have any ratio."""
_SKIPPABLE = struct.Struct("<II")
"""The header of a zstd frame that every decompressor skips: a magic number, and the size of what follows."""
_SKIPPABLE_MAGIC = 0x184D2A50


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
    """Return the `size` bytes that all concatenated parts decompress to, or raise CompressionError. Each part needs a new stream.

    A size that these bytes cannot have is refused before any memory is taken.
    """
    if size > max(_SMALL, _MAX_RATIO * len(data)):
        message = f"the header declares {size} bytes, but {len(data)} compressed bytes give at most {_MAX_RATIO} times as many"
        raise CompressionError(message, code="compression.bomb")
    result = bytearray()
    view = memoryview(data)
    inputs = (view[start : start + _READ] for start in range(0, len(view), _READ))
    stream, pending, size_at_last_end, empty_parts = new_stream(), next(inputs, b""), 0, 0
    while True:
        output = stream.decompress(pending, min(size + 1 - len(result), _OUTPUT))
        result += output
        if len(result) > size:
            raise CompressionError(f"the data decompresses to more than the {size} bytes that its header declares", code="compression.bomb")
        if stream.eof:
            pending = stream.unused_data or next(inputs, b"")
            empty_parts = empty_parts + 1 if len(result) == size_at_last_end else 0
            if not pending or empty_parts > 1:  # the end, or more than padding: there could be any number of empty parts
                break
            stream, size_at_last_end = new_stream(), len(result)
        elif not output and not pending:
            break
        else:
            pending = next(inputs, b"") if stream.needs_input else b""
    if len(result) < size or not stream.eof or pending or empty_parts > 1:
        raise CompressionError(
            f"the compressed data is truncated or has extra bytes at its end: got {len(result)} of {size} bytes",
            code="compression.malformed",
        )
    return result


def _as_memory_error(error: Exception, message: str = "") -> Exception:
    """Return a MemoryError if a compression library reports in its own way that memory ran out, else a CompressionError."""
    return MemoryError(str(error)) if "alloc" in str(error).lower() else CompressionError(message or f"cannot compress: {error}")


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
        try:
            compressed = bytes(self._zstd.compress(data, options=self._options))
        except self._zstd.ZstdError as error:
            raise _as_memory_error(error) from error
        padding = len(data) // _PADDED_RATIO - len(compressed) - _SKIPPABLE.size
        return compressed + _SKIPPABLE.pack(_SKIPPABLE_MAGIC, padding) + bytes(padding) if padding > 0 else compressed

    def decompress(self, data: Buffer, size: int) -> bytearray:
        try:
            return decompress_parts(self._zstd.ZstdDecompressor, data, size)
        except self._zstd.ZstdError as error:
            raise _as_memory_error(error, f"the zstd data is damaged: {error}") from error


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
        try:
            return bytes(self._frame.compress(data, content_checksum=True))
        except RuntimeError as error:
            raise_host_exception(error)
            raise _as_memory_error(error) from error

    def decompress(self, data: Buffer, size: int) -> bytearray:
        try:
            return decompress_parts(self._frame.LZ4FrameDecompressor, data, size)
        except (RuntimeError, EOFError) as error:
            raise_host_exception(error)
            raise _as_memory_error(error, f"the lz4 data is damaged: {error}") from error
