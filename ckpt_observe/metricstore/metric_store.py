"""The metrics of all processes, in one SQLite file of the state directory: `metrics.db`.

Every process that delivers adds spans, one transaction per batch; the process that publishes reads the total. A counter therefore survives
the process that counted, nobody collects values from processes that may be dead, and a restart continues where the last run stopped.

**Counted once.** A batch, or a part of it, is delivered again if the process died between the commit here and the update of its cursor. The
ids of the last 100,000 operations are stored in the same transaction as the values, and these operations are not counted again. An older
operation is delivered again only if the cursor file was damaged while another exporter, down for that long, kept the records on disk.

**Durable.** After `add_spans` returns, the values survive a power failure, so no counter goes backwards.
"""

from __future__ import annotations

import os
import sqlite3
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from ckpt_observe.metricstore.aggregation import BatchAggregator, SeriesKey, SpanGroup, group_spans
from ckpt_observe.metricstore.labels import STATUS_SERIES, LabelLimiter
from ckpt_observe.metricstore.operation_status import OperationStatus
from ckpt_observe.metricstore.points import Counter, Histogram, Point
from ckpt_observe.semconv.metrics import LABEL_OVERFLOW, METRICS
from ckpt_observe.span import Span
from ckpt_observe.support import files, sqlite

FILENAME: Final = "metrics.db"
BUSY_SECONDS: Final = 5.0
"""How long to wait for another writer, which holds the lock for one batch."""
DEDUPLICATED_OPERATIONS: Final = 100_000
"""Number of operations and tasks, counted last, that are recognised if they are delivered again."""
_IDS_PER_QUERY: Final = 500
"""Below the parameter limit of old SQLite versions (999)."""
_MIGRATIONS: Final = (
    (
        "CREATE TABLE about (created REAL NOT NULL, id TEXT NOT NULL)",
        "CREATE TABLE series (metric TEXT, labels TEXT, point BLOB NOT NULL, PRIMARY KEY (metric, labels)) WITHOUT ROWID",
        "CREATE TABLE label (name TEXT, value TEXT, day INTEGER NOT NULL, PRIMARY KEY (name, value)) WITHOUT ROWID",
        "CREATE TABLE seen (number INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE)",
    ),
)

_POINT_TYPES: Final = {spec.name: Histogram if spec.instrument == "histogram" else Counter for spec in METRICS}
_LABEL_COUNTS: Final = {spec.name: len(spec.labels) for spec in METRICS}
_DAMAGED: Final = (msgspec.MsgspecError, ValueError, TypeError, RecursionError)
"""What decoding a damaged row may raise."""
_encode_point = msgspec.msgpack.encode
_decoders: Final[dict[type, Any]] = {kind: msgspec.msgpack.Decoder(kind) for kind in (Counter, Histogram, OperationStatus)}
_encode_labels = msgspec.json.Encoder().encode
_decode_labels = msgspec.json.Decoder(tuple[str, ...]).decode


class StoredMetrics(msgspec.Struct, frozen=True):
    """The contents of the store at one moment."""

    id: str
    created: float
    """Unix seconds."""
    points: dict[str, dict[tuple[str, ...], Point]]
    """By metric, then by label values."""
    statuses: dict[tuple[str, str], OperationStatus]
    """By operation and task."""


class MetricStore:
    """One connection to the store, for one thread at a time. After an exception from `add_spans` or `add_counts`, open a new store.

    The constructor creates a missing file. sqlite3.Error or OSError if it cannot be opened, is not a database, or is of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self._connection = _connect(path)
        self._limit_label = LabelLimiter(self._connection)
        self._path, self._file = path, files.identity(path)

    def is_replaced(self) -> bool:
        """Return whether somebody moved or removed the file, so that nobody would read what is added to it."""
        return files.identity(self._path) != self._file

    def add_spans(self, spans: Sequence[Span]) -> None:
        """Add every operation and task that was not counted yet: all of them, or none and sqlite3.Error is raised."""
        with sqlite.transaction(self._connection):
            now = time.time()
            self._limit_label.begin(int(now // 86400))
            batch = BatchAggregator(self._limit_label, now)
            for span, phases in self._remove_duplicates(group_spans(spans)):
                batch.add(span, phases)
            for label, times in self._limit_label.overflow.items():
                batch.count(LABEL_OVERFLOW, (label,), times)
            self._limit_label.overflow.clear()
            self._add_batch(batch)

    def add_counts(self, counts: Mapping[SeriesKey, float]) -> None:
        """Add to counters that are not computed from spans: all of them, or none and sqlite3.Error is raised."""
        with sqlite.transaction(self._connection):
            for key, value in counts.items():
                self._add_point(key, Counter(value))

    def read(self) -> StoredMetrics:
        """Return all metrics and statuses, as of one moment. Damaged series are left out; sqlite3.Error if the file cannot be read."""
        with sqlite.snapshot(self._connection):
            about = self._connection.execute("SELECT created, id FROM about").fetchone()
            rows = self._connection.execute("SELECT metric, labels, point FROM series ORDER BY metric, labels").fetchall()
        if about is None:
            raise sqlite3.DatabaseError("the store is damaged: its description is missing")
        stored = StoredMetrics(about[1], about[0], {}, {})
        for row in rows:
            with suppress(*_DAMAGED):  # the other series are right
                self._decode_series(stored, *row)
        return stored

    @staticmethod
    def _decode_series(stored: StoredMetrics, metric: str, text: str, blob: bytes) -> None:
        labels = _decode_labels(text)
        if metric == STATUS_SERIES:
            operation, task = labels
            stored.statuses[operation, task] = _decoders[OperationStatus].decode(blob)
        elif metric in _POINT_TYPES and len(labels) == _LABEL_COUNTS[metric]:  # else a metric that this version no longer has
            stored.points.setdefault(metric, {})[labels] = _decoders[_POINT_TYPES[metric]].decode(blob)

    def close(self) -> None:
        self._connection.close()

    def _remove_duplicates(self, groups: Iterable[SpanGroup]) -> list[SpanGroup]:
        """Return the operations and tasks that were not counted before, and mark them as counted."""
        by_id = {bytes.fromhex(group[0].trace_id + group[0].span_id): group for group in groups}
        run = self._connection.execute
        last, changes = run("SELECT coalesce(max(number), 0) FROM seen").fetchone()[0], self._connection.total_changes
        sqlite.insert_rows(self._connection, "INSERT OR IGNORE INTO seen (id) VALUES (?)", [(each,) for each in by_id])
        if self._connection.total_changes - changes < len(by_id):
            self._remove_seen(by_id, last)
        run("DELETE FROM seen WHERE number <= (SELECT max(number) FROM seen) - ?", (DEDUPLICATED_OPERATIONS,))
        return list(by_id.values())

    def _remove_seen(self, by_id: dict[bytes, SpanGroup], last: int) -> None:
        """Remove what was counted before, which has a number up to `last`."""
        ids = list(by_id)
        for start in range(0, len(ids), _IDS_PER_QUERY):
            chunk = ids[start : start + _IDS_PER_QUERY]
            query = f"SELECT id FROM seen WHERE id IN ({','.join('?' * len(chunk))}) AND number <= ?"  # noqa: S608 - only question marks
            for (duplicate,) in self._connection.execute(query, (*chunk, last)):
                del by_id[duplicate]

    def _add_batch(self, batch: BatchAggregator) -> None:
        for key, counter in batch.finished_counters():
            self._add_point(key, counter)
        for key, builder in batch.histograms.items():
            self._add_point(key, builder.build())
        for labels, attempts in batch.attempts.items():
            status = self._get((STATUS_SERIES, labels), OperationStatus) or OperationStatus()
            for attempt in sorted(attempts, key=lambda attempt: attempt.end):
                status.apply(attempt)
            self._set((STATUS_SERIES, labels), status)

    def _add_point(self, key: SeriesKey, point: Any) -> None:
        stored = self._get(key, type(point))
        if stored is not None:
            stored.add(point)
        self._set(key, stored or point)

    def _get(self, key: SeriesKey, kind: type) -> Any:
        query = "SELECT point FROM series WHERE metric = ? AND labels = ?"
        row = self._connection.execute(query, (key[0], _encode_labels(key[1]).decode())).fetchone()
        try:
            return _decoders[kind].decode(row[0]) if row else None
        except _DAMAGED:  # the series starts again
            return None

    def _set(self, key: SeriesKey, point: Any) -> None:
        row = (key[0], _encode_labels(key[1]).decode(), _encode_point(point))
        self._connection.execute("INSERT OR REPLACE INTO series (metric, labels, point) VALUES (?, ?, ?)", row)


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    connection = sqlite.connect(path, busy_seconds=BUSY_SECONDS)
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    version = sqlite.schema_version(connection)
    if version > len(_MIGRATIONS):
        raise sqlite3.DatabaseError(
            f"written by a newer ckpt_observe (schema version {version}, this one supports {len(_MIGRATIONS)}): upgrade ckpt_observe"
        )
    with suppress(sqlite3.OperationalError):  # another process is opening the new file, too; the next process to open it tries again
        sqlite.enable_wal(connection)
    if version == 0:
        with sqlite.transaction(connection):
            if sqlite.upgrade_schema(connection, _MIGRATIONS) == 0:
                about = (time.time(), str(uuid.UUID(bytes=os.urandom(16), version=4)))
                connection.execute("INSERT INTO about VALUES (?, ?)", about)
    sqlite.sync_commits(connection)
