"""Checkpoints as JSON Lines: `jsonl:///path`, one file each, with the header on the first line and the state on the second.

`jsonl:///path?gzip` compresses whole files and names them `.jsonl.gz`. Reading detects compression from the file itself, so both kinds, and
compressed files that an earlier version named `.jsonl`, can share a directory.
The guarantees are those of the file store.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence

from ckpt_observe.core.codecs import GzipCodec
from ckpt_observe.core.format import container
from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.format.names import id_to_file_name, to_file_name
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.stores.file import FileStore
from ckpt_observe.core.stores.header_cache import OPEN_FLAGS
from ckpt_observe.core.stores.store import already_exists
from ckpt_observe.errors import ConfigError, IntegrityError
from ckpt_observe.support import files

_GZIP_MAGIC = b"\x1f\x8b"
_GZIP_SIZE = 4
"""Bytes at the end of a gzip file that say how many bytes it has when it is decompressed."""
_USUAL_HEADER = 64 * 1024
_PLAIN, _GZIP = ".jsonl", ".jsonl.gz"


class JsonlStore(FileStore):
    """A directory of JSON Lines files."""

    kind = "jsonl"
    capabilities = FileStore.capabilities._replace(reads_ranges=False)

    def __init__(self, url: str) -> None:
        base, _, option = url.partition("?")
        if option not in ("", "gzip"):
            raise ConfigError(f"unknown option ?{option} of a jsonl store: use ?gzip or no option")
        super().__init__("file" + base.removeprefix("jsonl"))
        self.location = url
        self._gzip = option == "gzip"
        self.suffix, self._other_suffix = (_GZIP, _PLAIN) if self._gzip else (_PLAIN, _GZIP)

    def get(self, task: str, id: str) -> Buffer:
        return _decode(super().get(task, id))

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        return self.get(task, id)[start : start + size]

    def size(self, task: str, id: str) -> int:
        return len(self.get(task, id))

    def _file_name(self, task: str, id: str) -> str:
        other_name = id_to_file_name(id) + self._other_suffix
        return other_name if self._exists(task, other_name) else super()._file_name(task, id)

    def _stem(self, name: str) -> str:
        return name.removesuffix(_GZIP) if name.endswith(_GZIP) else name.removesuffix(_PLAIN)

    def _write(self, task: str, batch: Sequence[tuple[CheckpointInfo, Blob]]) -> None:
        for info, _ in batch:  # the file system only prevents two files of the same name
            if self._exists(task, id_to_file_name(info.id) + self._other_suffix):
                raise already_exists(task, info.id)
        super()._write(task, batch)

    def _exists(self, task: str, name: str) -> bool:
        return os.path.lexists(os.path.join(self._root, to_file_name(task), name))

    def _encode(self, info: CheckpointInfo, blob: Blob) -> Blob:
        if info.format != "json" or info.codec != "none" or info.cipher:
            text = "a jsonl store needs format='json' without compression and encryption: its states are plain JSON. ?gzip compresses files"
            raise ConfigError(text)
        lines = b"%b\n" % bytes(blob)
        return Blob((GzipCodec().compress(lines) if self._gzip else lines,))

    def _read_header(self, directory: int, name: str) -> CheckpointInfo:
        file = os.open(name, OPEN_FLAGS, dir_fd=directory)
        try:
            size = os.fstat(file).st_size
            start = bytes(files.read_range(file, 0, min(size, _USUAL_HEADER)))
            if start.startswith(_GZIP_MAGIC) or b"\n" not in start:
                start = bytes(files.read_range(file, 0, min(size, container.MAX_HEADER)))
            end = bytes(files.read_range(file, max(0, size - _GZIP_SIZE), _GZIP_SIZE))
        finally:
            os.close(file)
        return _read_start(start, end, size)


def _read_start(start: bytes, end: bytes, size: int) -> CheckpointInfo:
    """Return the header of a file from its start. Its size or end tell whether it is complete, so that a large file is not read."""
    if not start.startswith(_GZIP_MAGIC):
        info = container.read_header(start)
        if end[-1:] != b"\n" or size <= info.stored_size:
            raise _truncated()
        return info
    try:
        info = container.read_header(zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(start, container.MAX_HEADER))
    except zlib.error as error:
        raise _damaged(error) from error
    if int.from_bytes(end, "little") != (info.stored_size + 1) % (1 << 8 * _GZIP_SIZE):
        raise _truncated()
    return info


def _decode(stored: Buffer) -> Buffer:
    """Return the checkpoint in a file: decompressed if necessary, without the final newline."""
    lines = _decompress(stored) if bytes(stored[:2]) == _GZIP_MAGIC else stored
    if bytes(lines[-1:]) != b"\n":
        raise _truncated()
    return lines[:-1]


def _decompress(stored: Buffer) -> bytes:
    """Return the lines of a gzip file. Decompresses no more bytes than the first line declares."""
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        start = stream.decompress(stored, container.MAX_HEADER)
        size = container.read_header(start).stored_size + 1
        lines = start + stream.decompress(stream.unconsumed_tail, max(1, size + 1 - len(start)))
    except zlib.error as error:
        raise _damaged(error) from error
    if len(lines) != size or not stream.eof:
        text = f"this gzip file contains {len(lines)} bytes, but its first line says {size}"
        raise IntegrityError(text, code="integrity.size_mismatch")
    return lines


def _truncated() -> IntegrityError:
    return IntegrityError("this file is truncated: it does not end where its first line says", code="integrity.truncated")


def _damaged(error: zlib.error) -> IntegrityError:
    return IntegrityError(f"this gzip file is damaged: {error}", code="integrity.malformed")
