"""lz4: the fastest, and the least small. Extra `lz4`."""

from __future__ import annotations

from ckpt_observe.core.blob import Buffer
from ckpt_observe.core.codecs.base import exactly
from ckpt_observe.errors import CompressionError, MissingExtraError

try:
    from lz4 import frame
except ImportError as error:
    raise MissingExtraError("lz4 compression", "lz4") from error

_LARGEST_RATIO = 256
"""One byte of lz4 stands for at most 255."""


class Lz4Codec:
    """The lz4 frame format, with its checksum."""

    name = "lz4"

    def compress(self, data: Buffer) -> bytes:
        return bytes(frame.compress(data, content_checksum=True))

    def decompress(self, data: Buffer, size: int) -> bytes:
        stream = frame.LZ4FrameDecompressor()
        try:
            most = min(size, _LARGEST_RATIO * len(data)) + 1  # lz4 makes room for all of it at once
            result = stream.decompress(bytes(data), max_length=most)
            if len(result) == size and not stream.eof:
                result += stream.decompress(b"", max_length=1)
        except (RuntimeError, EOFError) as error:
            raise CompressionError(f"the lz4 data is damaged: {error}") from error
        return exactly(result, size, ended=stream.eof and not stream.unused_data)
