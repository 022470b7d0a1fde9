"""What is at a path, as far as it is needed to recognize its format: magic bytes, names of members and files, tables."""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cached_property
from itertools import islice
from types import TracebackType
from typing import Final, Self

from ckpt_observe.readers import zip_directory
from ckpt_observe.readers.request import ReadRequest
from ckpt_observe.readers.source import SourceFile, file_kind, open_source
from ckpt_observe.readers.sqlite_database import plain_tables
from ckpt_observe.support.errnos import translate_os_errors

_START: Final = 4096
_MAX_NAMES: Final = 10_000
"""Names of a directory that are looked at to recognize its format."""


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
        """Return whether a subdirectory has a file with one of these suffixes, as the file stores of the core have."""
        for name in sorted(self.names):
            path = os.path.join(self.path, name)
            if os.path.islink(path) or not os.path.isdir(path):
                continue
            with translate_os_errors(f"listing {path}"), os.scandir(path) as entries:
                if any(entry.name.endswith(suffixes) for entry in islice(entries, _MAX_NAMES)):
                    return True
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
