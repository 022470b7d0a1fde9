"""gzip: every tool reads it."""

from __future__ import annotations

import gzip
import zlib

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.codecs.base import decompressed
from ckpt_observe.errors import CompressionError

_GZIP = 16 + zlib.MAX_WBITS


class GzipCodec:
    """Level 6: gzip's own default, and where more effort stops paying."""

    name = "gzip"

    def compress(self, data: Buffer) -> bytes:
        return gzip.compress(data, compresslevel=6, mtime=0)  # without a time: equal states stay equal bytes

    def decompress(self, data: Buffer, size: int) -> bytearray:
        try:
            return decompressed(_Stream, data, size)
        except zlib.error as error:
            raise CompressionError(f"the gzip data is damaged: {error}") from error


class _Stream:
    """zlib's own kind of decompressor, with the face of the others."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)

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
