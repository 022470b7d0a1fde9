"""What is at a path, as far as it is needed to recognize its format: magic bytes, names of members and files, tables."""

from __future__ import annotations

import os
import zlib
from contextlib import ExitStack
from functools import cached_property
from itertools import islice
from types import TracebackType
from typing import Final, Self

from ckpt_observe.core.format.header import START
from ckpt_observe.core.format.names import time_of_id
from ckpt_observe.errors import CheckpointNotFoundError, LocationError
from ckpt_observe.readers import zip_directory
from ckpt_observe.readers.request import ReadRequest
from ckpt_observe.readers.source import SourceFile, file_kind, open_source
from ckpt_observe.readers.sqlite_database import plain_tables
from ckpt_observe.support.errnos import translate_os_errors
from ckpt_observe.support.host_exceptions import ignore_errors

_START: Final = 4096
_MAX_NAMES: Final = 10_000
"""Names of a directory that are looked at to recognize its format."""
_MAX_FILES: Final = 100
"""Files of a directory that are opened for that. Usually the first one of a store is recognized."""
_GZIP_MAGIC: Final = b"\x1f\x8b"


class Candidate:
    """A path whose format is not known yet. Everything is read when a format asks for it."""

    def __init__(self, path: str, request: ReadRequest) -> None:
        self.path = path
        self.request = request
        self.kind = file_kind(path)
        """`file` or `directory`."""
        self._stack = ExitStack()

    @cached_property
    def source(self) -> SourceFile:
        """The file, opened. Only for a file."""
        return self._stack.enter_context(open_source(self.path, self.request.limits))

    @property
    def is_empty(self) -> bool:
        """Whether it is a file without bytes, or a directory without files."""
        return not self.names if self.kind == "directory" else self.source.size == 0

    @cached_property
    def tables(self) -> dict[str, frozenset[str]] | None:
        """Columns of the plain tables of a SQLite file; None for anything else."""
        return plain_tables(self.path, self.request.limits) if self.kind == "file" else None

    def has_columns(self, table: str, columns: frozenset[str]) -> bool:
        """Return whether it is a SQLite file with this table."""
        return (self.tables or {}).get(table, frozenset()) >= columns

    @cached_property
    def start(self) -> bytes:
        """The first bytes of a file; empty for a directory or database."""
        return self.source.start(_START) if self.kind == "file" and self.tables is None else b""

    @cached_property
    def members(self) -> frozenset[str]:
        """Names in a zip file; empty for anything else. IntegrityError if its directory is damaged."""
        return frozenset(zip_directory.read_directory(self.source)) if self.start.startswith(zip_directory.MAGIC) else frozenset()

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the files in a directory, the first ten thousand; empty for a file."""
        if self.kind != "directory":
            return frozenset()
        with translate_os_errors(f"listing {self.path}"), os.scandir(self.path) as entries:
            return frozenset(entry.name for entry in islice(entries, _MAX_NAMES))

    def has_task_files(self, *suffixes: str) -> bool:
        """Return whether a subdirectory has a checkpoint of the core with one of these suffixes. Others use `.ckpt` and `.jsonl`, too.

        A damaged one is recognized by an ID that the core gave it: `verify` must find it, also if it is the only one.
        """
        for name in sorted(self.names):
            path = os.path.join(self.path, name)
            if os.path.islink(path) or not os.path.isdir(path):
                continue
            with translate_os_errors(f"listing {path}"), os.scandir(path) as entries:
                files = [entry.path for entry in islice(entries, _MAX_NAMES) if entry.name.endswith(suffixes) and entry.is_file()]
            if any(time_of_id(os.path.basename(file)) or self._starts_like_the_core(file) for file in files[:_MAX_FILES]):
                return True
        return False

    def has_task_repositories(self) -> bool:
        """Return whether there is a bare git repository with checkpoints of the core."""
        repositories = [os.path.join(self.path, name) for name in sorted(self.names - {".git"}) if name.endswith(".git")]
        return any(
            os.path.isdir(os.path.join(path, "refs", "checkpoints"))
            or b" refs/checkpoints/" in self._start_of(os.path.join(path, "packed-refs"))  # refs are sorted, so this one is near the start
            for path in repositories[:_MAX_FILES]
        )

    def _starts_like_the_core(self, path: str) -> bool:
        start = self._start_of(path)
        if start.startswith(_GZIP_MAGIC):
            try:
                start = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(start, len(START))
            except zlib.error:
                return False
        return start.startswith(START)

    def _start_of(self, path: str) -> bytes:
        """Return the first bytes of a file below this directory; nothing if it is not there (any more)."""
        with ignore_errors(CheckpointNotFoundError, LocationError), open_source(path, self.request.limits) as source:
            return source.start(_START)
        return b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
