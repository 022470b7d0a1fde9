"""The base of the SQL stores: one table, whose columns index the headers.

The header is stored as it was written and checked by every reader. The other columns are only used to find it.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing
from typing import Any, TypeVar

from ckpt_observe.core.format import container
from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.query import Query
from ckpt_observe.core.stores import index_terms
from ckpt_observe.core.stores.store import Store, decode_headers, not_found, to_microseconds
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, IntegrityError, StorageError
from ckpt_observe.support import forks
from ckpt_observe.support.host_exceptions import ignore_errors

COLUMNS = "task, id, created, step, status, error_class, stored_size, facts, header, payload"
_MIGRATION_ROWS = 500
"""Rows per transaction when index terms are added to rows of an older version. Between transactions other writers get a turn."""
_MIGRATION_SIZE = 64 * 1024
"""Bytes. Rows of an older version get index terms only up to this stored size. Every query for terms reads the headers of the others."""

T = TypeVar("T")


def to_row(info: CheckpointInfo, blob: Blob, terms: Any) -> tuple[Any, ...]:
    """Return the values of COLUMNS. `terms` is the value of the column `facts`: the encoded index terms, or None."""
    header = blob.pieces[0]
    rest = blob.pieces[1:]
    payload = rest[0] if len(rest) == 1 else b"".join(rest)
    error = info.metadata.get("error")
    error_class = error.get("class") if isinstance(error, dict) else None
    if not isinstance(error_class, str):  # metadata may contain anything, but queries only ask for strings
        error_class = None
    return info.task, info.id, to_microseconds(info.created), info.step, info.status, error_class, info.stored_size, terms, header, payload


def check_types(kind: Any, values: Sequence[T]) -> Sequence[T]:
    """Return the values if they have this type. IntegrityError if not: a column of a damaged file may contain anything."""
    if not all(isinstance(value, kind) for value in values):
        raise column_error()
    return values


def column_error() -> IntegrityError:
    return IntegrityError("this database is damaged: a column contains a value of the wrong type", code="integrity.malformed")


def to_conditions(query: Query, placeholder: str) -> tuple[str, list[Any]]:
    """Return the part of a query that columns can answer, as SQL and its values. The rest is checked against each header.

    Names and values of the query never become SQL text; `placeholder` takes their place.
    """
    conditions: list[tuple[str, Any]] = [
        ("task =", query.task),
        ("created >=", None if query.since is None else to_microseconds(query.since)),
        ("created <=", None if query.until is None else to_microseconds(query.until)),
        ("step >=", query.min_step),
        ("step <=", query.max_step),
        ("status =", query.status),
        ("error_class =", query.error_class),
        ("stored_size >=", query.min_size),
        ("stored_size <=", query.max_size),
    ]
    used = [(column, value) for column, value in conditions if value is not None]
    return " AND ".join(["true", *(f"{column} {placeholder}" for column, _ in used)]), [value for _, value in used]


class SqlStore(Store):
    """A table of checkpoints with one connection and one lock. Subclasses implement connecting, querying and committing.

    The column `facts` contains the index terms. It is NULL in rows of older versions, and if `index_terms.terms_of` returns None.
    """

    _has_term: str
    """SQL condition with one placeholder: the column `facts` contains this term."""

    def __init__(self, location: str, table: str, quarantine: str, placeholder: str) -> None:
        super().__init__(location)
        self._table = table
        self._placeholder = placeholder
        self._from_row = f"FROM {table} WHERE task = {placeholder} AND id = {placeholder}"
        self._quarantine = f"INSERT INTO {quarantine} SELECT task, id, header, payload {self._from_row}"
        self._lock = threading.RLock()
        self._connection: Any = None
        self._closed = False
        forks.register(self)

    @staticmethod
    @abstractmethod
    def _encode_terms(terms: list[int]) -> Any:
        """Return index terms as a value of the column `facts`."""

    @abstractmethod
    def _connect(self) -> tuple[Any, bool]:
        """Return a connection to a database with the current tables, and whether existing rows may lack index terms."""

    @abstractmethod
    def _rows(self, statement: str, values: tuple[Any, ...]) -> Sequence[Any]:
        """Return all rows of a SELECT statement."""

    @abstractmethod
    def _transaction(self, action: str) -> AbstractContextManager[Any]:
        """Return a context with the connection in a transaction, which is durable when the context ends. `action` is for error messages."""

    def reset_after_fork(self) -> None:
        """Use a new lock and a new connection: the parent still uses the inherited connection, and may have held the lock."""
        self._lock = threading.RLock()
        forks.keep_alive(self._connection)
        self._connection = None

    def info(self, task: str, id: str) -> CheckpointInfo:
        return container.read_header(bytes(self._columns(Buffer, "header", task, id)[0]))

    def size(self, task: str, id: str) -> int:
        return int(self._columns(int, "length(header) + length(payload)", task, id)[0])

    def delete(self, task: str, id: str) -> None:
        with self._transaction("deleting") as connection:
            self._delete(connection, task, id)

    def quarantine(self, task: str, id: str) -> None:
        with self._transaction("moving") as connection:
            connection.execute(self._quarantine, (task, id))
            self._delete(connection, task, id)

    def list(self, task: str) -> CheckpointInfos:
        return self.find(Query(task=task))

    def find(self, query: Query) -> CheckpointInfos:
        condition, values = to_conditions(query, self._placeholder)
        for term in index_terms.required_terms(query):
            condition += f" AND (facts IS NULL OR {self._has_term})"
            values.append(self._encode_terms([term]))
        limit = query.limit
        while True:
            rows = self._newest_rows("task, id, header", condition, tuple(values), () if limit is None else (limit,))
            matches = [info for info in decode_headers(rows) if query.matches(info)]
            if query.limit is None or limit is None or len(matches) >= query.limit or len(rows) < limit:
                return matches[: query.limit]
            limit *= 64  # some rows were damaged or did not match. Start over, so that the result is from one moment

    def ids(self, task: str) -> tuple[str, ...]:
        rows = self._rows(f"SELECT id FROM {self._table} WHERE task = {self._placeholder}", (task,))  # noqa: S608
        return tuple(check_types(str, [row[0] for row in rows]))

    def newest(self, task: str) -> str | None:
        rows = self._newest_rows("id", f"task = {self._placeholder}", (task,), (1,))
        return next(iter(check_types(str, [row[0] for row in rows])), None)

    def tasks(self) -> tuple[str, ...]:
        rows = self._rows(f"SELECT DISTINCT task FROM {self._table}", ())  # noqa: S608
        return tuple(sorted(check_types(str, [row[0] for row in rows])))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._disconnect()

    def _newest_rows(self, columns: str, condition: str, values: tuple[Any, ...], limit: tuple[int, ...]) -> Sequence[Any]:
        end = f" LIMIT {self._placeholder}" if limit else ""
        statement = f"SELECT {columns} FROM {self._table} WHERE {condition} ORDER BY created DESC, id DESC{end}"  # noqa: S608
        return self._rows(statement, (*values, *limit))

    def _columns(self, kind: Any, columns: str, task: str, id: str, values: tuple[Any, ...] = ()) -> Sequence[Any]:
        """Return columns of one row, all of type `kind`. `values` are for placeholders in them. CheckpointNotFoundError if no row."""
        rows = self._rows(f"SELECT {columns} {self._from_row}", (*values, task, id))
        if not rows:
            raise self._not_found(task, id)
        return check_types(kind, rows[0])

    def _delete(self, connection: Any, task: str, id: str) -> None:
        if not connection.execute(f"DELETE {self._from_row}", (task, id)).rowcount:
            raise self._not_found(task, id)

    def _not_found(self, task: str, id: str) -> CheckpointNotFoundError:
        return not_found(task, id, self.location)

    def _open(self) -> Any:
        """Return the connection, connecting if necessary. Called with the lock held."""
        if self._closed:
            raise StorageError("this store is closed", code="storage.closed", retryable=False)
        if self._connection is None:
            self._connection, lacks_terms = self._connect()
            if lacks_terms:
                self._add_missing_terms()
                return self._open()  # the connection may have been lost meanwhile
        return self._connection

    def _add_missing_terms(self) -> None:
        """Add index terms to rows of older versions. Errors are ignored: queries are slower without them, but not wrong."""
        mark, last = self._placeholder, ("", "")
        missing = f"facts IS NULL AND stored_size <= {_MIGRATION_SIZE} AND (task, id) > ({mark}, {mark})"
        select = f"SELECT task, id, header FROM {self._table} WHERE {missing} ORDER BY task, id LIMIT {_MIGRATION_ROWS}"  # noqa: S608
        update = f"UPDATE {self._table} SET facts = {mark} WHERE task = {mark} AND id = {mark} AND created = {mark}"  # noqa: S608
        with ignore_errors(CheckpointError):
            while rows := self._rows(select, last):
                last = rows[-1][:2]
                updates = [(self._terms(info), info.task, info.id, to_microseconds(info.created)) for info in decode_headers(rows)]
                with self._transaction("indexing") as connection, closing(connection.cursor()) as cursor:
                    cursor.executemany(update, updates)

    def _terms(self, info: CheckpointInfo) -> Any:
        terms = index_terms.terms_of(info)
        return None if terms is None else self._encode_terms(terms)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
