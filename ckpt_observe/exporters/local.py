"""Stores spans on this machine, in `traces.db` of the state directory.

The file is created with the first batch. It is reopened after any error, after a fork, and if somebody moved or removed it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError, TraceStoreError
from ckpt_observe.exporter import Exporter
from ckpt_observe.span import Span
from ckpt_observe.support import files, forks
from ckpt_observe.tracestore import FILENAME, MAX_BYTES, TraceWriter


class LocalExporter(Exporter):
    """Writes spans to the local trace store. For one thread at a time.

    Spans are durable when `send` returns. A repeated span replaces the earlier copy.
    """

    name = "local"

    def __init__(self, directory: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = directory / FILENAME
        self._max_bytes = max_bytes
        self._writer: TraceWriter | None = None
        self._file: tuple[int, int] | None = None
        self._pid = 0

    def __repr__(self) -> str:
        return f"LocalExporter({str(self.path)!r})"

    def send(self, spans: Sequence[Span]) -> None:
        """Store all spans or none.

        ExporterRetryError if the file is locked, damaged or not ours, or the disk is full. ExporterRefusedError if a value is invalid.
        """
        if not spans:
            return
        try:
            self._open().write(spans)
        except TraceStoreError as error:
            self.close()
            if error.retryable:
                raise ExporterRetryError(str(error)) from error
            raise ExporterRefusedError(str(error)) from error

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if self._pid == os.getpid():
            writer.close()
        else:
            forks.keep_alive(writer)  # SQLite forbids using the parent's connection here, even to close it

    def _open(self) -> TraceWriter:
        # After `rm traces.db`, nobody could read what is written to the open file.
        if self._writer is None or self._pid != os.getpid() or self._file != files.identity(self.path):
            self.close()
            self._writer = TraceWriter(self.path, self._max_bytes)
            self._pid, self._file = os.getpid(), files.identity(self.path)
        return self._writer
