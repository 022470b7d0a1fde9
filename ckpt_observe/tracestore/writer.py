"""Writes spans to the store and keeps it within its size limit.

A batch is one transaction, durable when `write` returns. A repeated span replaces the earlier copy. Several processes may
write at the same time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span
from ckpt_observe.support.sqlite import transaction
from ckpt_observe.tracestore import database
from ckpt_observe.tracestore.database import translate_errors
from ckpt_observe.tracestore.span_rows import COLUMNS, FACETS, to_json, to_row

MAX_BYTES: Final = 512 * 1024 * 1024
"""Default size limit of the store: about half a million spans, which is months of one AI agent."""

_ALL_COLUMNS: Final = (*COLUMNS, *FACETS, "resource_id")
_UPSERT: Final = (
    f"INSERT INTO span ({', '.join(_ALL_COLUMNS)}) VALUES ({', '.join('?' * len(_ALL_COLUMNS))}) "  # noqa: S608, our own column names
    f"ON CONFLICT (trace_id, span_id) DO UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in _ALL_COLUMNS[2:])}"
)


class TraceWriter:
    """Writes one store, from one thread at a time. TraceStoreError if the file cannot be opened."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._connection = database.connect(path, create=True)

    def write(self, spans: Sequence[Span]) -> None:
        """Store all spans or none, then remove old traces if the store exceeds its limit. TraceStoreError if that fails."""
        with translate_errors(self.path):
            unique = {(span.trace_id, span.span_id): span for span in spans}
            rows = [(to_row(span), to_json(span.resource)) for span in unique.values()]
            with transaction(self._connection):
                resources = self._resource_ids({resource for _, resource in rows})
                last = self._connection.execute("SELECT max(id) FROM span").fetchone()[0] or 0
                self._connection.executemany(_UPSERT, ((*row, resources[resource]) for row, resource in rows))
                new = set(self._connection.execute("SELECT trace_id, span_id FROM span WHERE id > ?", (last,)))
                self._connection.executemany(database.COUNT_IN, _trace_rows(span for key, span in unique.items() if key in new))
                _prune(self._connection, self._max_bytes)

    def close(self) -> None:
        self._connection.close()

    def _resource_ids(self, texts: Iterable[str]) -> dict[str, int]:
        # Not cached between batches: another process may prune unused resources.
        ids = {}
        for text in texts:
            self._connection.execute("INSERT INTO resource (attributes) VALUES (?) ON CONFLICT DO NOTHING", (text,))
            ids[text] = int(self._connection.execute("SELECT id FROM resource WHERE attributes = ?", (text,)).fetchone()[0])
        return ids


def _trace_rows(spans: Iterable[Span]) -> Iterator[tuple[Any, ...]]:
    """Yield for each trace the parameters of `COUNT_IN`: what its new spans add to its summary."""
    spans_by_trace: dict[str, list[Span]] = {}
    for span in spans:
        spans_by_trace.setdefault(span.trace_id, []).append(span)
    for trace_id, group in spans_by_trace.items():
        earliest = min(group, key=lambda span: (span.start_unix_nano, span.parent_span_id != ""))
        outcomes = [span.attributes.get(names.OUTCOME) for span in group if names.OPERATION in span.attributes]
        counts = (len(group), len(outcomes), outcomes.count("error"), outcomes.count("interrupted"))
        end = max(span.end_unix_nano for span in group)
        yield trace_id, earliest.name, earliest.start_unix_nano, end, *counts, not earliest.parent_span_id


def _prune(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Remove whole traces, earliest end first, until the rest fits. If the last trace alone does not fit, remove its oldest spans."""
    pruned = False
    while _used_bytes(connection) > max_bytes:
        oldest = connection.execute("SELECT trace_id, spans FROM trace ORDER BY end_unix_nano, trace_id LIMIT 2").fetchall()
        if len(oldest) > 1:
            _drop_trace(connection, oldest[0][0])
        elif oldest and oldest[0][1] > 1:
            connection.execute("DELETE FROM span WHERE id IN (SELECT id FROM span ORDER BY id LIMIT ?)", (max(1, oldest[0][1] // 10),))
        else:
            break
        pruned = True
    if pruned:
        connection.execute("DELETE FROM resource WHERE NOT EXISTS (SELECT 1 FROM span WHERE resource_id = resource.id)")


def _drop_trace(connection: sqlite3.Connection, trace_id: str) -> None:
    connection.execute("DELETE FROM trace WHERE trace_id = ?", (trace_id,))
    connection.execute("DELETE FROM span WHERE trace_id = ?", (trace_id,))


def _used_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of the pages in use. The file itself does not shrink, but free pages are reused before it grows."""
    pages, free, size = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "freelist_count", "page_size"))
    return (pages - free) * size
