"""lz4: the fastest, and the least small. Extra `lz4`."""

from __future__ import annotations

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.codecs.base import decompressed
from ckpt_observe.errors import CompressionError, MissingExtraError

try:
    from lz4 import frame
except ImportError as error:
    raise MissingExtraError("lz4 compression", "lz4") from error


class Lz4Codec:
    """The lz4 frame format, with its checksum."""

    name = "lz4"

    def compress(self, data: Buffer) -> bytes:
        return bytes(frame.compress(data, content_checksum=True))

    def decompress(self, data: Buffer, size: int) -> bytearray:
        try:
            return decompressed(frame.LZ4FrameDecompressor, data, size)
        except (RuntimeError, EOFError) as error:
            raise CompressionError(f"the lz4 data is damaged: {error}") from error
