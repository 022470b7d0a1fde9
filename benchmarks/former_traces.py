"""The trace store of earlier versions, in which every span was a row: for tests of the migration, and to compare with the present store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import Span, SpanEvent, SpanLink
from ckpt_observe.support import sqlite
from ckpt_observe.tracestore import TraceSummary
from ckpt_observe.tracestore.database import translate_errors
from ckpt_observe.tracestore.tree import walk

COLUMNS = (
    *("trace_id", "span_id", "parent_span_id", "name", "start_unix_nano", "end_unix_nano", "status", "attributes", "events", "links"),
)
FACETS = {
    "outcome": names.OUTCOME,
    "operation": names.OPERATION,
    "task_name": names.TASK_NAME,
    "task_id": names.TASK_ID,
    "session_id": names.SESSION_ID,
    "error_class": names.ERROR_CLASS,
}
_ADD_TO_SUMMARY = """
INSERT INTO trace VALUES ({values})
ON CONFLICT (trace_id) DO UPDATE SET
    name = CASE WHEN excluded.start_unix_nano < start_unix_nano
        OR excluded.start_unix_nano = start_unix_nano AND {is_root} THEN excluded.name ELSE name END,
    start_unix_nano = min(start_unix_nano, excluded.start_unix_nano),
    end_unix_nano = max(end_unix_nano, excluded.end_unix_nano),
    spans = spans + excluded.spans,
    operations = operations + excluded.operations,
    errors = errors + excluded.errors,
    interrupted = interrupted + excluded.interrupted;
"""
_COUNT_IN = _ADD_TO_SUMMARY.format(values="?, ?, ?, ?, ?, ?, ?, ?", is_root="?")
_COUNT_IN_BY_TRIGGER = _ADD_TO_SUMMARY.format(
    values="NEW.trace_id, NEW.name, NEW.start_unix_nano, NEW.end_unix_nano, 1, NEW.operation IS NOT NULL, "
    "NEW.operation IS NOT NULL AND NEW.outcome IS 'error', NEW.operation IS NOT NULL AND NEW.outcome IS 'interrupted'",
    is_root="NEW.parent_span_id = ''",
)
_COUNT_OUT = """
UPDATE trace SET
    spans = spans - 1,
    operations = operations - (OLD.operation IS NOT NULL),
    errors = errors - (OLD.operation IS NOT NULL AND OLD.outcome IS 'error'),
    interrupted = interrupted - (OLD.operation IS NOT NULL AND OLD.outcome IS 'interrupted')
WHERE trace_id = OLD.trace_id;
"""
MIGRATIONS = (
    (
        f"PRAGMA application_id = {0x636B7074}",
        "CREATE TABLE resource (id INTEGER PRIMARY KEY, attributes TEXT NOT NULL UNIQUE)",
        """CREATE TABLE trace (
            trace_id TEXT PRIMARY KEY, name TEXT NOT NULL, start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL,
            spans INTEGER NOT NULL, operations INTEGER NOT NULL, errors INTEGER NOT NULL, interrupted INTEGER NOT NULL
        ) WITHOUT ROWID""",
        "CREATE INDEX trace_by_end ON trace (end_unix_nano)",
        """CREATE TABLE span (
            id INTEGER PRIMARY KEY, trace_id TEXT NOT NULL, span_id TEXT NOT NULL, parent_span_id TEXT NOT NULL, name TEXT NOT NULL,
            start_unix_nano INTEGER NOT NULL, end_unix_nano INTEGER NOT NULL, status TEXT NOT NULL,
            outcome TEXT, operation TEXT, task_name TEXT, task_id TEXT, session_id TEXT, error_class TEXT,
            attributes TEXT NOT NULL, events TEXT NOT NULL, links TEXT NOT NULL, resource_id INTEGER NOT NULL REFERENCES resource,
            UNIQUE (trace_id, span_id)
        )""",
        "CREATE INDEX span_by_parent ON span (trace_id, parent_span_id, start_unix_nano)",
        "CREATE INDEX span_by_resource ON span (resource_id)",
        "CREATE INDEX span_by_name ON span (name, end_unix_nano)",
        *(f"CREATE INDEX span_by_{column} ON span ({column}, end_unix_nano) WHERE {column} IS NOT NULL" for column in FACETS),
        f"CREATE TRIGGER span_came AFTER INSERT ON span BEGIN {_COUNT_IN_BY_TRIGGER} END",
        f"CREATE TRIGGER span_went AFTER DELETE ON span BEGIN {_COUNT_OUT} END",
        f"CREATE TRIGGER span_changed AFTER UPDATE ON span BEGIN {_COUNT_OUT} {_COUNT_IN_BY_TRIGGER} END",
    ),
    ("DROP TRIGGER span_came", "DROP INDEX span_by_parent"),
)
_ALL_COLUMNS = (*COLUMNS, *FACETS, "resource_id")
_UPSERT = (
    f"INSERT INTO span ({', '.join(_ALL_COLUMNS)}) VALUES ({', '.join('?' * len(_ALL_COLUMNS))}) "
    f"ON CONFLICT (trace_id, span_id) DO UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in _ALL_COLUMNS[2:])}"
)
_encoder = msgspec.json.Encoder(order="deterministic")
_attributes = msgspec.json.Decoder(dict[str, Any])
_events = msgspec.json.Decoder(tuple[SpanEvent, ...])
_links = msgspec.json.Decoder(tuple[SpanLink, ...])


class FormerTraces:
    """Writes and reads the store as earlier versions did."""

    def __init__(self, path: Path) -> None:
        self._path, self.connection = path, sqlite.connect(path, busy_seconds=5)
        with sqlite.transaction(self.connection):
            sqlite.upgrade_schema(self.connection, MIGRATIONS)
        sqlite.enable_wal(self.connection)
        sqlite.sync_commits(self.connection)

    def close(self) -> None:
        self.connection.close()

    def write(self, spans: Sequence[Span]) -> None:
        """Store all spans. A repeated one replaces the earlier copy."""
        rows = [(_to_row(span), _to_json(span.resource)) for span in spans]
        with sqlite.transaction(self.connection):
            resources = {}
            for text in {resource for _, resource in rows}:
                self.connection.execute("INSERT INTO resource (attributes) VALUES (?) ON CONFLICT DO NOTHING", (text,))
                resources[text] = self.connection.execute("SELECT id FROM resource WHERE attributes = ?", (text,)).fetchone()[0]
            last = self.connection.execute("SELECT max(id) FROM span").fetchone()[0] or 0
            self.connection.executemany(_UPSERT, ((*row, resources[resource]) for row, resource in rows))
            new = set(self.connection.execute("SELECT trace_id, span_id FROM span WHERE id > ?", (last,)))
            self.connection.executemany(_COUNT_IN, _summaries(span for span in spans if (span.trace_id, span.span_id) in new))

    def newest(self, limit: int = 20, **values: str) -> list[TraceSummary]:
        """Return the traces that ended last; with values of columns, those that contain such a span."""
        with translate_errors(self._path):
            if not values:
                query = "SELECT * FROM trace WHERE end_unix_nano >= ? ORDER BY end_unix_nano DESC LIMIT ?"
                return [TraceSummary(*row) for row in self.connection.execute(query, (0, limit))]
            conditions = "".join(f" AND {column} = ?" for column in values)
            query = f"SELECT trace_id FROM span WHERE end_unix_nano >= ?{conditions} ORDER BY end_unix_nano DESC"
            trace_ids: dict[str, None] = {}
            for (trace_id,) in self.connection.execute(query, (0, *values.values())):
                if len(trace_ids) == limit:
                    break
                trace_ids[trace_id] = None
            by_id = "SELECT * FROM trace WHERE trace_id = ?"
            return [TraceSummary(*row) for trace_id in trace_ids for row in self.connection.execute(by_id, (trace_id,))]

    def spans(self, trace_id: str) -> list[Span]:
        """Return the spans of a trace, parents before children."""
        query = (
            f"SELECT {', '.join(f'span.{column}' for column in COLUMNS)}, resource.attributes "
            "FROM span JOIN resource ON resource.id = span.resource_id WHERE trace_id = ?"
        )
        with translate_errors(self._path):
            return [node.span for node in walk(_from_row(row) for row in self.connection.execute(query, (trace_id,)))]

    def count(self) -> int:
        """Return the number of spans."""
        return int(self.connection.execute("SELECT count(*) FROM span").fetchone()[0])


def _to_json(value: Any) -> str:
    return _encoder.encode(value).decode()


def _to_row(span: Span) -> tuple[Any, ...]:
    facets = [None if (value := span.attributes.get(attribute)) is None else str(value) for attribute in FACETS.values()]
    fields = (span.trace_id, span.span_id, span.parent_span_id, span.name, span.start_unix_nano, span.end_unix_nano, span.status)
    return (*fields, _to_json(span.attributes), _to_json(span.events), _to_json(span.links), *facets)


def _from_row(row: tuple[Any, ...]) -> Span:
    trace_id, span_id, parent, name, start, end, status, attributes, events, links, resource = row
    return Span(
        trace_id, span_id, parent, name, start, end, status,
        _attributes.decode(attributes), _events.decode(events), _links.decode(links), _attributes.decode(resource),
    )  # fmt: skip


def _summaries(spans: Iterable[Span]) -> Iterable[tuple[Any, ...]]:
    by_trace: dict[str, list[Span]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, []).append(span)
    for trace_id, group in by_trace.items():
        earliest = min(group, key=lambda span: (span.start_unix_nano, span.parent_span_id != ""))
        outcomes = [span.attributes.get(names.OUTCOME) for span in group if names.OPERATION in span.attributes]
        counts = (len(group), len(outcomes), outcomes.count("error"), outcomes.count("interrupted"))
        end = max(span.end_unix_nano for span in group)
        yield trace_id, earliest.name, earliest.start_unix_nano, end, *counts, not earliest.parent_span_id
