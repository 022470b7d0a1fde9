"""Stores operations on this machine, in `operations.db` of the state directory.

The file is created with the first batch. It is reopened after any error, after a fork, and if somebody moved or removed it. Spans that an
earlier version stored, or still stores, in its own file are moved here on the side.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ckpt_observe.errors import ExporterRefusedError, ExporterRetryError, TraceStoreError
from ckpt_observe.exporter import Exporter
from ckpt_observe.span import Span
from ckpt_observe.support import files, forks
from ckpt_observe.support.logs import WarningLog
from ckpt_observe.tracestore import DEFAULT_LIMITS, FILENAME, TraceLimits, TraceWriter
from ckpt_observe.tracestore.former_store import FormerStore

_MOVE_SECONDS: Final = 0.05
"""How long spans of an earlier version are moved after a batch."""
_MOVE_INTERVAL: Final = 0.5
"""Seconds from one such time to the next: moving takes a tenth of a core."""


class LocalExporter(Exporter):
    """Writes spans to the local trace store. For one thread at a time.

    Spans are durable when `send` returns. A repeated span replaces the earlier copy.
    """

    name = "local"

    def __init__(self, directory: Path, limits: TraceLimits = DEFAULT_LIMITS) -> None:
        self.path = directory / FILENAME
        self._limits = limits
        self._writer: TraceWriter | None = None
        self._file: tuple[int, int] | None = None
        self._pid = 0
        self._former_store = FormerStore(directory)
        self._next_move = 0.0
        self._warnings = WarningLog()

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
        if time.monotonic() >= self._next_move and self._former_store.has_changed():
            self.move_former(_MOVE_SECONDS)
            self._next_move = time.monotonic() + _MOVE_INTERVAL

    def move_former(self, seconds: float) -> int:
        """Move spans of an earlier version here for about so many seconds, and return their number. A failure is logged once."""
        try:
            moved = self._former_store.move(self._open(), seconds)
            self._warnings.clear("move")
        except TraceStoreError as error:
            self._warnings.warn_once("move", "Traces of an earlier version are not available: %s", error)
            return 0
        return moved

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        if self._pid == os.getpid():
            writer.close()
        else:
            forks.keep_alive(writer)  # SQLite forbids using the parent's connection here, even to close it

    def _open(self) -> TraceWriter:
        # After `rm operations.db`, nobody could read what is written to the open file.
        if self._writer is None or self._pid != os.getpid() or self._file != files.identity(self.path):
            self.close()
            self._writer = TraceWriter(self.path, self._limits)
            self._pid, self._file = os.getpid(), files.identity(self.path)
        return self._writer
