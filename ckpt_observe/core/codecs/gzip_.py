"""gzip: every tool reads it."""

from __future__ import annotations

import gzip
import zlib

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.codecs.base import exactly
from ckpt_observe.errors import CompressionError

_GZIP = 16 + zlib.MAX_WBITS


class GzipCodec:
    """Level 6: gzip's own default, and where more effort stops paying."""

    name = "gzip"

    def compress(self, data: Buffer) -> bytes:
        return gzip.compress(data, compresslevel=6, mtime=0)  # without a time: equal states stay equal bytes

    def decompress(self, data: Buffer, size: int) -> bytes:
        stream = zlib.decompressobj(_GZIP)
        try:
            result = stream.decompress(data, size + 1)
        except zlib.error as error:
            raise CompressionError(f"the gzip data is damaged: {error}") from error
        return exactly(result, size, ended=stream.eof and not stream.unused_data)
