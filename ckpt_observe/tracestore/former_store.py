"""Moves spans from the store of earlier versions, `traces.db`, to the present one.

Both files exist side by side, because processes of both versions may share a state directory during an upgrade: those of the earlier one
go on writing to their file, and those of the present one empty it again and again. A batch is removed from the former store after it is
durable in the present one. If the process dies in between, the batch is moved again, which replaces the same rows.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from ckpt_observe.errors import TraceStoreError
from ckpt_observe.span import Span, SpanEvent, SpanLink
from ckpt_observe.support import sqlite
from ckpt_observe.support.logs import WarningLog
from ckpt_observe.tracestore.database import APPLICATION_ID, translate_errors
from ckpt_observe.tracestore.operation_groups import is_phase
from ckpt_observe.tracestore.writer import TraceWriter

FORMER_FILENAME: Final = "traces.db"
_VERSIONS: Final = (1, 2)
_BATCH: Final = 1000
"""Spans that are moved in one transaction, which takes about 40 ms. Processes of the earlier version wait that long."""
_READ_AHEAD: Final = 200
"""Further spans that are read, because a batch ends with a complete operation: its phases are stored before it."""
_BUSY_SECONDS: Final = 1.0
_ROWS: Final = """
SELECT span.id, trace_id, span_id, parent_span_id, name, start_unix_nano, end_unix_nano, status, span.attributes, events, links,
    resource.attributes
FROM span LEFT JOIN resource ON resource.id = span.resource_id WHERE span.id > ? ORDER BY span.id LIMIT ?
"""
_attributes = msgspec.json.Decoder(dict[str, Any])
_events = msgspec.json.Decoder(tuple[SpanEvent, ...])
_links = msgspec.json.Decoder(tuple[SpanLink, ...])


class FormerStore:
    """The store of earlier versions in one state directory. For one thread at a time."""

    def __init__(self, state: Path) -> None:
        self.path = state / FORMER_FILENAME
        self._idle_stamp: tuple[int, ...] | None = None
        """The stamp of the file when nothing was left to move."""
        self._unreadable = 0
        """Position of the last span that could not be moved. It stays where it is."""
        self._warnings = WarningLog()

    def has_changed(self) -> bool:
        """Return whether there may be something to move: two calls of `stat`, without opening the file."""
        stamp = _stamp(self.path)
        return bool(stamp) and stamp != self._idle_stamp

    def move(self, writer: TraceWriter, seconds: float) -> int:
        """Move spans for about so many seconds and return their number. Raise TraceStoreError if a file cannot be read or written."""
        deadline, moved = time.monotonic() + seconds, 0
        with translate_errors(self.path):
            stamp = _stamp(self.path)
            connection = sqlite.connect(self.path, busy_seconds=_BUSY_SECONDS, create=False)
            try:
                _check(connection, self.path)
                while count := self._move_batch(connection, writer):
                    moved += count
                    if time.monotonic() >= deadline:
                        return moved
            finally:
                connection.close()
            self._idle_stamp = _stamp(self.path) if moved else stamp
        return moved

    def _move_batch(self, connection: sqlite3.Connection, writer: TraceWriter) -> int:
        """Move one batch and return the number of its spans: 0 if nothing is left."""
        with sqlite.transaction(connection):  # nobody changes the spans between reading and removing them
            rows = connection.execute(_ROWS, (self._unreadable, _BATCH + _READ_AHEAD)).fetchall()
            spans: list[Span] = []
            ids: list[int] = []
            for row in rows:
                try:
                    spans.append(_from_row(row[1:]))
                except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
                    self._unreadable = row[0]
                    self._warnings.warn_once("damaged", "Damaged spans of an earlier version stay in %s: %s", self.path, error)
                    break
                ids.append(row[0])
            count = _complete_operations(spans) if len(spans) == _BATCH + _READ_AHEAD else len(spans)
            writer.write_former(spans[:count])
            connection.executemany("DELETE FROM span WHERE id = ?", [(id,) for id in ids[:count]])
            connection.executemany("DELETE FROM trace WHERE trace_id = ? AND spans <= 0", {(span.trace_id,) for span in spans[:count]})
        return count or int(bool(rows))


def _complete_operations(spans: list[Span]) -> int:
    """Return after how many spans to end a batch: behind the last operation, so that none is separated from its phases."""
    return next((count for count in range(len(spans), _BATCH // 2, -1) if not is_phase(spans[count - 1])), len(spans))


def _check(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION_ID or sqlite.schema_version(connection) not in _VERSIONS:
        raise TraceStoreError(f"{path} is not a trace store of an earlier version; it is not changed. Move it away.")


def _from_row(row: tuple[Any, ...]) -> Span:
    trace_id, span_id, parent, name, start, end, status, attributes, events, links, resource = row
    return Span(
        trace_id, span_id, parent, name, start, end, status,
        _attributes.decode(attributes), _events.decode(events), _links.decode(links), _attributes.decode(resource or "{}"),
    )  # fmt: skip


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes whenever somebody writes to the store. Empty if it does not exist."""
    stamp: list[int] = []
    for file in (path, path.with_name(path.name + "-wal")):
        try:
            status = os.stat(file)
        except FileNotFoundError:
            continue
        stamp += (status.st_ino, status.st_mtime_ns, status.st_size)
    return tuple(stamp)
