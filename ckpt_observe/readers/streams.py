"""Bytes in order: a plain file, the content of a zip member, or a compressed file that is decompressed in small pieces."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Final, cast

from ckpt_observe.errors import CompressionError, MissingExtraError
from ckpt_observe.readers.source import SourceFile, exceeds, malformed, truncated
from ckpt_observe.support.advice import add_advice
from ckpt_observe.support.errnos import translate_os_errors
from ckpt_observe.support.host_exceptions import raise_host_exception

_PIECE: Final = 256 * 1024
_MAX_LINE: Final = 64 * 1024
_LZMA_MEMORY: Final = 256 * 1024 * 1024
"""Bytes that a decompressor of LZMA may use. A file can ask for 4 GiB."""


class ByteStream:
    """Reads forward. Every method raises IntegrityError if the bytes end too early."""

    def __init__(self, file: BinaryIO, location: str, *, size: int | None = None, limit: int = 2**62) -> None:
        """`size` is the number of bytes if it is known; then `file` can seek. `limit` is the number that may be read otherwise."""
        self._file = file
        self._location = location
        self._size = size
        self._limit = limit
        self._buffer = b""
        self._offset = 0
        """Where the next byte is in the buffer."""
        self._buffer_start = 0
        """Where the buffer starts in the stream."""

    @property
    def position(self) -> int:
        """Number of bytes that were read or skipped."""
        return self._buffer_start + self._offset

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        end = self._offset + size
        if end > len(self._buffer):  # rare: most reads are of a few bytes
            self._fill(size)
            end = size
        data = self._buffer[self._offset : end]
        self._offset = end
        return data

    def read_byte(self) -> int:
        """Return the next byte as a number. For opcodes: `read` takes three times as long."""
        offset = self._offset
        if offset >= len(self._buffer):
            return self.read(1)[0]
        self._offset = offset + 1
        return self._buffer[offset]

    def readline(self) -> bytes:
        """Return the next line with its end. The readers of `pickletools` call this."""
        end = self._buffer.find(b"\n", self._offset) + 1
        if not end:
            self._fill(0, _MAX_LINE)
            end = self._buffer.find(b"\n") + 1
        if not end or end - self._offset > _MAX_LINE:
            raise malformed(self._location, f"the line at byte {self.position} has no end")
        return self.read(end - self._offset)

    def skip(self, size: int) -> None:
        """Move over bytes without keeping them."""
        in_buffer = min(size, len(self._buffer) - self._offset)
        self._offset += in_buffer
        size -= in_buffer
        if self._size is not None and size:
            end = self._buffer_start + len(self._buffer) + size
            self._check(end)
            with translate_os_errors(f"reading {self._location}"):
                self._file.seek(size, io.SEEK_CUR)
            self._buffer, self._buffer_start, self._offset = b"", end, 0
            return
        while size > 0:
            size -= len(self.read(min(size, _PIECE)))

    def _fill(self, size: int, ahead: int = _PIECE) -> None:
        """Read ahead, so that the next `size` bytes are in the buffer, which then starts with them."""
        self._check(self.position + size)
        rest = self._buffer[self._offset :]
        with translate_os_errors(f"reading {self._location}"):
            more = self._file.read(max(size - len(rest), ahead))
        self._buffer_start += self._offset
        self._buffer, self._offset = rest + more, 0
        if len(self._buffer) < size:
            raise truncated(self._location, f"it ends after {self._buffer_start + len(self._buffer)} bytes")

    def _check(self, end: int) -> None:
        if self._size is not None and end > self._size:
            raise truncated(self._location, f"byte {end} is needed, and it has {self._size}")
        if end > self._limit:
            raise exceeds(f"the decompressed size of {self._location}", "decompressed_size", self._limit)


def memory_stream(data: bytes, location: str) -> ByteStream:
    """Return a stream of bytes in memory."""
    return ByteStream(io.BytesIO(data), location, size=len(data))


def file_stream(source: SourceFile) -> ByteStream:
    """Return a stream of a whole file, decompressed if it starts like a compressed one."""
    file = cast("BinaryIO", io.BufferedReader(cast("Any", io.FileIO(source.file, closefd=False)), _PIECE))
    file.seek(0)
    start = source.start(6)
    factory = next((factory for magic, factory in _DECOMPRESSORS.items() if start.startswith(magic)), None)
    if factory is None:
        return ByteStream(file, source.path, size=source.size)
    decompressed = _DecompressedFile(file, factory(), source.path)
    return ByteStream(cast("BinaryIO", io.BufferedReader(decompressed, _PIECE)), source.path, limit=source.limits.decompressed_size)


def is_compressed(start: bytes) -> bool:
    """Return whether a file starts like one that joblib compressed."""
    return start.startswith(tuple(_DECOMPRESSORS))


class _Zlib:
    """Gives zlib the interface of the other decompressors."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(32 + zlib.MAX_WBITS)  # zlib or gzip

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._stream.decompress(self._stream.unconsumed_tail + data, max_length)

    @property
    def needs_input(self) -> bool:
        return not self._stream.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._stream.eof


def _lz4() -> Any:
    try:
        import lz4.frame  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingExtraError("a file compressed with LZ4", "lz4") from error
    return lz4.frame.LZ4FrameDecompressor()


_DECOMPRESSORS: Final[dict[bytes, Callable[[], Any]]] = {
    b"\x1f\x8b": _Zlib,
    b"\x78\x01": _Zlib,
    b"\x78\x5e": _Zlib,
    b"\x78\x9c": _Zlib,
    b"\x78\xda": _Zlib,
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\x00": lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY),
    b"]\x00\x00": lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY),
    b"\x04\x22\x4d\x18": _lz4,
}


class _DecompressedFile(io.RawIOBase):
    def __init__(self, file: BinaryIO, decompressor: Any, location: str) -> None:
        self._file = file
        self._decompressor = decompressor
        self._location = location

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._decompressor.eof:
            data = self._file.read(_PIECE) if self._decompressor.needs_input else b""
            if self._decompressor.needs_input and not data:
                raise truncated(self._location, "its compressed data ends too early")
            try:
                output = self._decompressor.decompress(data, max_length=len(buffer))
            except (zlib.error, lzma.LZMAError, RuntimeError, EOFError, ValueError, OSError) as error:  # lz4: RuntimeError, bz2: OSError
                raise_host_exception(error)
                text = f"{self._location} cannot be decompressed: {error}"
                raise CompressionError(add_advice(text, "compression.malformed"), code="compression.malformed") from error
            if output:
                buffer[: len(output)] = output
                return len(output)
        return 0
