"""Links a load to the save that wrote its checkpoint, across processes and days, without writing into the data of the host program.

The reference core stores the trace of a save in the checkpoint itself. Other libraries have no place for it, so the state directory has an
index: library, task, namespace and checkpoint id lead to the span of the save. An id that is an absolute path says all of that by itself:
training that continues often has another task id, and a later save to the same path replaces the earlier one. The index is bounded; a load
whose save is not in it, because that was too long ago or made with another state directory, has the id of its checkpoint and no link.

No backend has the span of a save whose trace is not sampled. Such a save is in the index without its span: it replaces an earlier save to
the same path, and its loads get its age and no link.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sqlite3
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from ckpt_observe.support import sqlite
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception
from ckpt_observe.support.logs import WarningLog

FILENAME: Final = "saves.db"
MAX_SAVES: Final = 200_000
"""Saves in the index, the latest ones: about 25 MB."""
_PRUNE_INTERVAL: Final = 1000
"""Saves that are added between two checks of the limit."""
_ROWS_PER_STATEMENT: Final = 8000 if sqlite3.sqlite_version_info >= (3, 32) else 249
"""SQLite allows 32,766 parameters of a statement, and 999 before version 3.32; a row has four."""
_REMEMBERED: Final = 4096
"""Saves that are kept in memory, the latest ones, so that most loads need no file."""
_BUSY_SECONDS: Final = 1.0
_READ: Final = ("load", "restore")
_SCHEMA: Final = (
    (
        "CREATE TABLE save (key BLOB PRIMARY KEY, trace TEXT NOT NULL, span TEXT NOT NULL, time INTEGER NOT NULL) WITHOUT ROWID",
        "CREATE INDEX save_time ON save (time)",
    ),
    (
        "CREATE TABLE detail (key BLOB PRIMARY KEY, time INTEGER NOT NULL, content BLOB NOT NULL) WITHOUT ROWID",
        "CREATE INDEX detail_time ON detail (time)",
    ),
)


class Source(NamedTuple):
    """The save of a checkpoint: its span, empty if its trace is not sampled, and when it ended, in Unix nanoseconds."""

    trace_id: str
    span_id: str
    unix_nano: int


class SaveIndex:
    """The saves of all processes of a state directory. Called from any thread. Without a usable file it remembers those of this process."""

    def __init__(self, state: Path | None) -> None:
        self._path = None if state is None else state / FILENAME
        self._connection: sqlite3.Connection | None = None
        self._recent: dict[bytes, Source] = {}
        self._unwritten: dict[bytes, Source] = {}
        self._added = 0
        self._lock = threading.RLock()  # re-entrant: a signal handler that saves a checkpoint may collect pages, too
        self._warnings = WarningLog()

    def add(self, key: bytes, source: Source) -> None:
        """Remember a save, and write it to the file with the next `write`."""
        with self._lock:
            previous = self._recent.get(key)
            if previous is not None and previous.unix_nano >= source.unix_nano:  # several exporters read the same record
                return
            self._recent.pop(key, None)
            self._recent[key] = source
            if len(self._recent) > _REMEMBERED:
                del self._recent[next(iter(self._recent))]
            self._unwritten[key] = source

    def write(self) -> None:
        """Write the saves that were added since the last call to the file, with as few statements as possible."""
        with self._lock:
            self._write_added()
            if self._added >= _PRUNE_INTERVAL:
                self._added = 0
                self.run("DELETE FROM save WHERE time <= (SELECT time FROM save ORDER BY time DESC LIMIT 1 OFFSET ?)", (MAX_SAVES,))

    def _write_added(self) -> None:
        while self._unwritten:
            part = list(itertools.islice(self._unwritten.items(), _ROWS_PER_STATEMENT))
            places = ",".join(["(?,?,?,?)"] * len(part))
            values = tuple(itertools.chain(*((key, *source) for key, source in part)))
            if self.run(f"INSERT OR REPLACE INTO save VALUES {places}", values) is None:  # noqa: S608
                break  # another process writes for longer than we wait: the next call tries again
            for key, _ in part:
                del self._unwritten[key]
            self._added += len(part)
        while len(self._unwritten) > _REMEMBERED:
            del self._unwritten[next(iter(self._unwritten))]

    def find(self, key: bytes) -> Source | None:
        """Return the save of a checkpoint, or None."""
        with self._lock:
            source = self._recent.get(key) or self._unwritten.get(key)
            if source is None:
                rows = self.run("SELECT trace, span, time FROM save WHERE key = ?", (key,))
                source = Source(*rows[0]) if rows else None
            return source

    def close(self) -> None:
        """Write what was added, and close the file."""
        with self._lock:
            self.write()
            self._disconnect()

    def __del__(self) -> None:
        """Close the file of an index that was not closed, such as that of the parent in a forked child. Python 3.13 warns otherwise."""
        with ignore_errors(sqlite3.Error):
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def has_file(self) -> bool:
        """Whether what is written can be read by other processes."""
        return self._path is not None

    def run(self, statement: str, parameters: tuple[Any, ...]) -> list[Any] | None:
        """Run a statement. Return None if another process has locked the file.

        After any other error the file is not used any more, because every load would wait for it again.
        """
        with self._lock:
            if self._path is None:
                return []
            try:
                if self._connection is None:
                    self._connection = _open(self._path)
                return self._connection.execute(statement, parameters).fetchall()
            except (sqlite3.Error, OSError) as error:
                raise_host_exception(error)
                if sqlite.primary_code(error) == sqlite3.SQLITE_BUSY:
                    return None
                self._disconnect()
                self._warnings.warn_once("index", "Loads are not linked to saves of other processes: cannot use %s: %s", self._path, error)
                self._path = None
                return []


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite.connect(path, busy_seconds=_BUSY_SECONDS)
    try:
        sqlite.enable_wal(connection)
        connection.execute("PRAGMA synchronous = OFF")  # after a power failure some loads lack a link; saves must not wait for the disk
        if sqlite.schema_version(connection) < len(_SCHEMA):
            with sqlite.transaction(connection):
                sqlite.upgrade_schema(connection, _SCHEMA)
    except BaseException:
        connection.close()
        raise
    return connection


class Lineage:
    """Adds a link to the records of loads, and the saves to the index."""

    def __init__(self, index: SaveIndex) -> None:
        self._index = index
        self._unlinked: dict[bytes, None] = {}
        """Checkpoints whose save was searched for and does not exist."""

    def annotate(self, lines: list[Any], attributes: Mapping[str, Any], search_dead: Callable[[int], None]) -> bool:
        """Add the link to a load. Return whether the lines were changed. `search_dead` adopts the journals of dead processes."""
        begin, end = lines[0], lines[-1]
        operation, checkpoint = begin[4], attributes.get(names.ID)
        if not isinstance(checkpoint, str) or (attributes.get(names.OUTCOME) or "ok") != "ok" or names.SOURCE_TRACE in attributes:
            return False
        key = save_key(attributes, checkpoint)
        if operation == "save":
            if attributes.get(names.SYSTEM) != "reference":  # which stores the trace in the checkpoint
                is_sampled = events.UNSAMPLED not in attributes
                self._index.add(key, Source(begin[5], begin[1], end[2]) if is_sampled else Source("", "", end[2]))
            return False
        source = self._find(key, begin[2], search_dead) if operation in _READ else None
        if source is None or (os.path.isabs(checkpoint) and source.unix_nano > begin[2]):  # overwritten since the load
            return False
        added: dict[str, Any] = {names.SOURCE_AGE: round(max(begin[2] - source.unix_nano, 0) / 1e9, 3)}
        if source.trace_id:
            lines.insert(-1, [events.LINK, begin[1], begin[2], source.trace_id, source.span_id, {}])
            added |= {names.SOURCE_TRACE: source.trace_id, names.SOURCE_SPAN: source.span_id}
        end[3] = {**added, **(end[3] or {})}
        return True

    def _find(self, key: bytes, unix_nano: int, search_dead: Callable[[int], None]) -> Source | None:
        source = self._index.find(key)
        if source is None and key not in self._unlinked:
            search_dead(unix_nano)  # the process that saved it may have died just now, before its last pages were collected
            source = self._index.find(key)
            if source is None:
                self._unlinked[key] = None
                if len(self._unlinked) > _REMEMBERED:
                    with ignore_errors(KeyError, StopIteration):  # another thread was faster
                        del self._unlinked[next(iter(self._unlinked))]
        return source


def save_key(attributes: Mapping[str, Any], checkpoint: str) -> bytes:
    """Return the key of a save in the index, and of the loads of its checkpoint."""
    scope = (names.SYSTEM,) if os.path.isabs(checkpoint) else (names.SYSTEM, names.TASK_ID, names.NAMESPACE)
    parts = [str(attributes.get(name) or "") for name in scope]
    return hashlib.blake2b("\0".join((*parts, checkpoint)).encode("utf-8", "replace"), digest_size=16).digest()
