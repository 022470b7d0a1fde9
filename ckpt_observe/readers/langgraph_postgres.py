"""LangGraph databases in PostgreSQL. Extra `postgres`. The server adds up; only one checkpoint at a time is read.

LangGraph stores small values inside the JSON of each checkpoint, and others once per version in `checkpoint_blobs`. The bytes of JSON are
those of its text. All statements run in one read-only transaction with a time limit.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ckpt_observe.core.stores.postgres import PostgresStore  # MissingExtraError if psycopg is not installed
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, CompatibilityError
from ckpt_observe.readers.contents import Breakdown, Contents, Entry, largest_first
from ckpt_observe.readers.encoded_values import ValueBudget
from ckpt_observe.readers.langgraph_rows import ENCODINGS, Channels, ThreadCheckpoint
from ckpt_observe.readers.request import ReadRequest
from ckpt_observe.readers.selection import no_thread, select_checkpoint
from ckpt_observe.support import sqlstates

import psycopg  # isort: skip
from ckpt_observe.core.stores import postgres_connection  # isort: skip

_TABLES: Final = {"checkpoints": {"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint", "metadata"}, "checkpoint_blobs": {"blob"}}
_SELECT_TABLES: Final = """
SELECT c.relname, array_agg(a.attname::text) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.oid = ANY (ARRAY[to_regclass('checkpoints'), to_regclass('checkpoint_blobs'), to_regclass('ckpt_checkpoints')])
AND c.relkind IN ('r', 'p') GROUP BY c.relname
"""
"""Only plain tables: a view would run its SQL."""
_OF_THREAD: Final = "WHERE %(thread)s::text IS NULL OR thread_id = %(thread)s"
_VALUES: Final = "CASE jsonb_typeof(checkpoint->'channel_values') WHEN 'object' THEN checkpoint->'channel_values' ELSE '{}' END"
_INLINE: Final = f"""
SELECT key, min(type), count(*), sum(size), max(size), coalesce(sum(size) FILTER (WHERE is_same), 0) FROM (
  SELECT key, jsonb_typeof(value) AS type, octet_length(value::text) AS size,
    value = lag(value) OVER (PARTITION BY thread_id, checkpoint_ns, key ORDER BY checkpoint_id) AS is_same
  FROM checkpoints, jsonb_each({_VALUES}) {_OF_THREAD}) AS channel_values GROUP BY key
"""  # noqa: S608 - our own names
_BLOBS: Final = f"""
SELECT channel, min(type), count(*), sum(size), max(size), coalesce(sum(size) FILTER (WHERE is_same), 0) FROM (
  SELECT channel, type, coalesce(octet_length(blob), 0) AS size,
    md5(blob) = lag(md5(blob)) OVER (PARTITION BY thread_id, checkpoint_ns, channel ORDER BY version) AS is_same
  FROM checkpoint_blobs {_OF_THREAD}) AS channel_values GROUP BY channel
"""  # noqa: S608
_THREADS: Final = f"""
SELECT thread_id, sum(count), sum(size) FROM (
  SELECT thread_id, 1 AS count, octet_length(checkpoint::text) AS size FROM checkpoints {_OF_THREAD}
  UNION ALL SELECT thread_id, 0, coalesce(octet_length(blob), 0) FROM checkpoint_blobs {_OF_THREAD}) AS parts GROUP BY thread_id
"""  # noqa: S608
_STEPS: Final = f"""
SELECT metadata->>'step', count(*), sum(octet_length(checkpoint::text)) FROM checkpoints {_OF_THREAD} GROUP BY 1
"""  # noqa: S608
_REST: Final = f"""
SELECT (SELECT coalesce(sum(octet_length(metadata::text)), 0) FROM checkpoints {_OF_THREAD}),
  (SELECT coalesce(sum(octet_length(blob)), 0) FROM checkpoint_writes {_OF_THREAD}),
  pg_total_relation_size('checkpoints') + pg_total_relation_size('checkpoint_blobs') + pg_total_relation_size('checkpoint_writes')
"""  # noqa: S608
_NEEDED: Final = f"""
WITH newest AS (SELECT DISTINCT ON (thread_id, checkpoint_ns) * FROM checkpoints {_OF_THREAD}
  ORDER BY thread_id, checkpoint_ns, checkpoint_id DESC)
SELECT coalesce(sum(octet_length(checkpoint::text) + octet_length(metadata::text)), 0)
  + (SELECT coalesce(sum(octet_length(b.blob)), 0) FROM newest n, jsonb_each_text(n.checkpoint->'channel_versions') v
     JOIN checkpoint_blobs b ON b.channel = v.key AND b.version = v.value
     WHERE b.thread_id = n.thread_id AND b.checkpoint_ns = n.checkpoint_ns)
  + (SELECT coalesce(sum(octet_length(w.blob)), 0) FROM newest n JOIN checkpoint_writes w USING (thread_id, checkpoint_ns, checkpoint_id))
FROM newest
"""  # noqa: S608
"""Bytes that remain if only the newest checkpoint of each thread and namespace remains."""
_CHECKPOINTS: Final = """
SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, octet_length(checkpoint::text), metadata->>'step', metadata->>'source'
FROM checkpoints WHERE thread_id = %(thread)s ORDER BY checkpoint_ns, checkpoint_id DESC
"""
_INLINE_OF_CHECKPOINT: Final = f"SELECT key, value::text FROM checkpoints, jsonb_each({_VALUES}) WHERE "  # noqa: S608
_KEY: Final = "thread_id = %(thread)s AND checkpoint_ns = %(namespace)s AND checkpoint_id = %(id)s"
_BLOBS_OF_CHECKPOINT: Final = f"""
SELECT b.channel, b.type, b.blob FROM (SELECT * FROM checkpoints WHERE {_KEY}) c, jsonb_each_text(c.checkpoint->'channel_versions') v
JOIN checkpoint_blobs b ON b.channel = v.key AND b.version = v.value
WHERE b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns AND b.type <> 'empty'
"""  # noqa: S608
_CHANNELS_OF_THREAD: Final = f"""
SELECT checkpoint_ns, checkpoint_id, key, jsonb_typeof(value), octet_length(value::text), md5(value::text)
FROM checkpoints, jsonb_each({_VALUES}) WHERE thread_id = %(thread)s
UNION ALL SELECT c.checkpoint_ns, c.checkpoint_id, b.channel, b.type, coalesce(octet_length(b.blob), 0), md5(b.blob)
FROM checkpoints c, jsonb_each_text(c.checkpoint->'channel_versions') v JOIN checkpoint_blobs b ON b.channel = v.key AND b.version = v.value
WHERE c.thread_id = %(thread)s AND b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns AND b.type <> 'empty'
"""  # noqa: S608
"""The channels of each checkpoint of a thread. A blob is listed for every checkpoint that refers to it."""


def is_core_database(url: str, request: ReadRequest) -> bool:
    """Return whether a database has the table of the core. CompatibilityError if it has neither that nor LangGraph's."""
    with _open(url, request) as connection:
        tables = {name: set(columns) for name, columns in connection.execute(_SELECT_TABLES)}
    if "ckpt_checkpoints" in tables:
        return True
    if all(tables.get(name, set()) >= columns for name, columns in _TABLES.items()):
        return False
    text = f"{_location(url)} has neither the tables of LangGraph (`checkpoints`, `checkpoint_blobs`) nor those of the core"
    raise CompatibilityError(f"{text}. Check the name of the database and its search path", code="compatibility.unknown_format")


def read_langgraph_postgres(url: str, request: ReadRequest) -> Contents:
    """Return the channels of all checkpoints, of those of a thread, or of a single one."""
    with _open(url, request) as connection:
        return _read_checkpoint(connection, url, request) if request.checkpoint is not None else _read_all(connection, url, request)


def _read_all(connection: Any, url: str, request: ReadRequest) -> Contents:
    def select(statement: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = connection.execute(statement, {"thread": request.task}).fetchall()
        return rows

    threads = select(_THREADS)
    if request.task is not None and not threads:
        raise _no_thread(connection, url, request)
    size = sum(int(row[2]) for row in threads)
    inline, blobs, steps = select(_INLINE), select(_BLOBS), select(_STEPS)
    [(metadata_size, writes_size, stored_size)] = select(_REST)
    [(needed_size,)] = select(_NEEDED)
    entries = _channels([*inline, *blobs])
    breakdowns = [
        Breakdown("thread", largest_first(_group(row, "thread") for row in threads), 0),
        Breakdown("step", largest_first(_group(row, "step") for row in steps), size - sum(int(row[2]) for row in steps)),
    ]
    if request.task is not None:
        children: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
        for namespace, id, name, type_name, length, digest in select(_CHANNELS_OF_THREAD) if request.depth > 1 else ():
            children[namespace, id].append(Entry(name=name, type=type_name, size=length, digest=f"md5:{digest}" if digest else ""))
        checkpoints = tuple(_checkpoint_entry(row, children[row.namespace, row.id]) for row in map(_checkpoint, select(_CHECKPOINTS)))
        breakdowns.append(Breakdown("checkpoint", checkpoints, size - sum(entry.size for entry in checkpoints)))
    return Contents(
        format="langgraph-postgres",
        location=_location(url),
        size=size,
        entries=entries,
        other_size=size - sum(entry.size for entry in entries),
        stored_size=int(stored_size),
        breakdowns=tuple(breakdowns),
        repeated_size=sum(int(row[5]) for row in (*inline, *blobs)),
        prunable_size=size + int(metadata_size) + int(writes_size) - int(needed_size),
        metadata={
            "checkpoints": sum(int(row[1]) for row in threads),
            "metadata_size": int(metadata_size),
            "writes_size": int(writes_size),
        },
    )


def _read_checkpoint(connection: Any, url: str, request: ReadRequest) -> Contents:
    rows = [_checkpoint(row) for row in connection.execute(_CHECKPOINTS, {"thread": request.task})]
    if not rows:
        raise _no_thread(connection, url, request)
    selected = select_checkpoint(rows, request.task or "", request.checkpoint or "")
    key = {"thread": request.task, "namespace": selected.namespace, "id": selected.id}
    groups: defaultdict[str, dict[str, bytes]] = defaultdict(dict)
    entries: list[Entry] = []
    budget = ValueBudget()
    for name, value in connection.execute(_INLINE_OF_CHECKPOINT + _KEY, key):
        groups["json"][name] = value.encode()
    for name, type_name, blob in connection.execute(_BLOBS_OF_CHECKPOINT, key):
        if type_name in ENCODINGS:
            groups[type_name][name] = bytes(blob or b"")
        else:
            entries.append(Entry(name=name, type=str(type_name), size=len(blob or b"")))
    for type_name, values in groups.items():
        entries += Channels(values, ENCODINGS[type_name]).entries(request.depth - 1, budget)
    inline_size = sum(map(len, groups["json"].values()))
    size = selected.size - inline_size + sum(entry.size for entry in entries)
    return Contents(
        format="langgraph-postgres",
        location=_location(url),
        size=size,
        entries=largest_first(entries),
        other_size=selected.size - inline_size,
        warnings=budget.warnings(),
        metadata={"task": selected.thread, "id": selected.id, **selected.details()},
    )


def _channels(rows: list[tuple[Any, ...]]) -> tuple[Entry, ...]:
    """Return a channel per entry. One can have values in the checkpoint and others in blobs."""
    totals: defaultdict[str, Counter[str]] = defaultdict(Counter)
    types: dict[str, str] = {}
    for name, type_name, count, size, largest, repeated in rows:
        types[name] = type_name
        total = totals[name]
        total.update(values=int(count), size=int(size), repeated_size=int(repeated))
        total["largest_size"] = max(int(largest), total["largest_size"])
    return largest_first(Entry(name=name, type=types[name], size=total.pop("size"), details=dict(total)) for name, total in totals.items())


def _group(row: tuple[Any, ...], type_name: str) -> Entry:
    return Entry(name=str(row[0]), type=type_name, size=int(row[2]), items=int(row[1]))


def _checkpoint_entry(checkpoint: ThreadCheckpoint, children: list[Entry]) -> Entry:
    """Return the entry of a checkpoint. Its size is that of its row; blobs, which checkpoints share, are other bytes of the breakdown."""
    return Entry(
        name=checkpoint.id, type="checkpoint", size=checkpoint.size, details=checkpoint.details(), children=largest_first(children)
    )


def _checkpoint(row: tuple[Any, ...]) -> ThreadCheckpoint:
    step = int(row[5]) if row[5] is not None and str(row[5]).lstrip("-").isdecimal() else None
    return ThreadCheckpoint(row[0], row[1], row[2], row[3], int(row[4]), step, row[6] or "", None)


@contextmanager
def _open(url: str, request: ReadRequest) -> Iterator[Any]:
    """Connect, and run the block in one read-only transaction. Errors of the server become CheckpointErrors."""
    connection = None
    try:
        connection = postgres_connection.connect(url)
        connection.execute(f"SET statement_timeout = {max(1, int(request.limits.seconds * 1000))}")
        connection.execute("SET default_transaction_read_only = on")
        connection.execute("SET default_transaction_isolation = 'repeatable read'")
        with connection.transaction():
            yield connection
    except psycopg.Error as error:
        raise _to_checkpoint_error(error, f"reading {_location(url)}") from error
    finally:
        if connection is not None:
            connection.close()


def _to_checkpoint_error(error: Any, action: str) -> CheckpointError:
    if error.sqlstate is None:
        return sqlstates.connection_to_checkpoint_error(str(error), action)
    return sqlstates.to_checkpoint_error(error.sqlstate, f"{action}: {type(error).__name__} {error.sqlstate}")


def _location(url: str) -> str:
    """Return the URL without credentials."""
    return PostgresStore(url).location


def _no_thread(connection: Any, url: str, request: ReadRequest) -> CheckpointNotFoundError:
    threads = [str(thread) for (thread,) in connection.execute("SELECT DISTINCT thread_id FROM checkpoints LIMIT 10000")]
    return no_thread(_location(url), request.task, threads)
