"""Checkpoints as JSON Lines: `jsonl:///path`, one file each, the summary on the first line and the state on the second.

`jsonl:///path?gzip` compresses whole files. Which it is, is read from the file itself, so plain and compressed ones lie side
by side and either store reads both. Promises are those of the file store.
"""

from __future__ import annotations

import os
import zlib

from ckpt_observe.core import container
from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.codecs.gzip_ import GzipCodec
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.core.stores.file import FileStore
from ckpt_observe.core.stores.headers import READ
from ckpt_observe.errors import ConfigError, IntegrityError
from ckpt_observe.support.files import read_range

_MAGIC = b"\x1f\x8b"


class JsonlStore(FileStore):
    """A directory of JSON Lines files."""

    kind = "jsonl"
    promise = FileStore.promise._replace(ranged=False)
    suffix = ".jsonl"

    def __init__(self, url: str) -> None:
        place, _, option = url.partition("?")
        if option not in ("", "gzip"):
            raise ConfigError(f"a jsonl store takes ?gzip, not ?{option}")
        super().__init__("file" + place.removeprefix("jsonl"))
        self.location = url
        self._gzip = option == "gzip"

    def get(self, task: str, id: str) -> Buffer:
        return _checkpoint(super().get(task, id))

    def get_range(self, task: str, id: str, start: int, size: int) -> Buffer:
        return self.get(task, id)[start : start + size]

    def size(self, task: str, id: str) -> int:
        return len(self.get(task, id))

    def _encoded(self, info: CheckpointInfo, blob: Blob) -> Blob:
        if info.format != "json" or info.codec != "none" or info.cipher:
            text = "a jsonl store keeps states as plain JSON: use format='json' without compression and encryption; ?gzip compresses files"
            raise ConfigError(text)
        lines = b"%b\n" % bytes(blob)
        return Blob((GzipCodec().compress(lines) if self._gzip else lines,))

    def _header(self, directory: int, name: str) -> CheckpointInfo:
        file = os.open(name, READ, dir_fd=directory)
        try:
            return container.read_header(_checkpoint(read_range(file, 0, os.fstat(file).st_size)))
        finally:
            os.close(file)


def _checkpoint(stored: Buffer) -> Buffer:
    """The checkpoint in a file: inflated if need be, without the last line's end."""
    lines = _inflated(stored) if bytes(stored[:2]) == _MAGIC else stored
    if bytes(lines[-1:]) != b"\n":
        raise IntegrityError("this file has no end of line at its end: it was cut", code="integrity.truncated")
    return lines[:-1]


def _inflated(stored: Buffer) -> bytes:
    """The lines, never more of them than the first one declares."""
    stream = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        start = stream.decompress(stored, container.MAX_HEADER)
        size = container.read_header(start).stored_size + 1
        lines = start + stream.decompress(stream.unconsumed_tail, max(1, size + 1 - len(start)))
    except zlib.error as error:
        raise IntegrityError(f"this gzip file is damaged: {error}", code="integrity.malformed") from error
    if len(lines) != size or not stream.eof:
        raise IntegrityError(f"this gzip file has {len(lines)} bytes, its first line says {size}", code="integrity.size_mismatch")
    return lines
