"""What the SQL stores share: one table, whose columns are an index over the headers.

The header is kept as it was written, so a listing checks its seal like any other reader; the columns only find it.
"""

from __future__ import annotations

import datetime as dt
import threading
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from typing import Any, TypeVar

from ckpt_observe.core import container
from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.query import Query
from ckpt_observe.core.stores import facts
from ckpt_observe.core.stores.base import Store
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError, IntegrityError, StorageError
from ckpt_observe.support import forks

COLUMNS = "task, id, created, step, status, error_class, stored_size, facts, header, payload"
_PORTION = 500
"""Rows of one transaction when facts are added to what an older version saved: others are to get their turn."""
_SMALL = 64 * 1024
"""Stored bytes of a row that is written anew for that. Larger ones go on without, and are looked at by each query for facts."""

T = TypeVar("T")

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)


def microseconds(moment: dt.datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def row(info: CheckpointInfo, blob: Blob, kept: Any) -> tuple[Any, ...]:
    """The values of COLUMNS; `kept` are the facts."""
    header = blob.pieces[0]
    rest = blob.pieces[1:]
    payload = rest[0] if len(rest) == 1 else b"".join(rest)
    error = info.metadata.get("error")
    given = error.get("class") if isinstance(error, dict) else None
    error_class = given if isinstance(given, str) else None  # the metadata are the program's own: no query asks for anything else
    return info.task, info.id, microseconds(info.created), info.step, info.status, error_class, info.stored_size, kept, header, payload


def infos(rows: Iterable[tuple[str, str, Buffer]]) -> CheckpointInfos:
    """Of tasks, ids and headers, the headers that are not damaged and lie where they belong."""
    found = []
    for task, id, header in rows:
        if not isinstance(header, Buffer):
            continue
        try:
            info = container.read_header(header)
        except CheckpointError:
            continue
        if info.task == task and info.id == id:
            found.append(info)
    return found


def sound(kind: Any, values: Sequence[T]) -> Sequence[T]:
    """Those values, if they are of that type: in a damaged file a column may hold anything."""
    if not all(isinstance(value, kind) for value in values):
        raise unsound()
    return values


def unsound() -> IntegrityError:
    return IntegrityError("a column of this database holds what was never put into it", code="integrity.malformed")


def conditions(query: Query, mark: str) -> tuple[str, list[Any]]:
    """The part of a query that the columns answer, as SQL with placeholders; what they cannot is asked of each header.

    No name or value of the query becomes SQL text.
    """
    wanted: list[tuple[str, Any]] = [
        ("task =", query.task),
        ("created >=", None if query.since is None else microseconds(query.since)),
        ("created <=", None if query.until is None else microseconds(query.until)),
        ("step >=", query.min_step),
        ("step <=", query.max_step),
        ("status =", query.status),
        ("error_class =", query.error_class),
        ("stored_size >=", query.min_size),
        ("stored_size <=", query.max_size),
    ]
    given = [(column, value) for column, value in wanted if value is not None]
    return " AND ".join(["true", *(f"{column} {mark}" for column, _ in given)]), [value for _, value in given]


class SqlStore(Store):
    """A table of checkpoints, one connection and one lock. A database of its own kind says how to connect, ask and commit.

    Its column `facts` is NULL where they are not known, as in rows of a program that does not write it yet.
    """

    _has: str
    """SQL that holds where the facts of a row have those that stand for its one value."""

    def __init__(self, location: str, table: str, quarantine: str, mark: str) -> None:
        """`mark` stands for a value in this database's SQL."""
        super().__init__(location)
        self._table = table
        self._mark = mark
        self._of_one = f"FROM {table} WHERE task = {mark} AND id = {mark}"
        self._quarantine = f"INSERT INTO {quarantine} SELECT task, id, header, payload {self._of_one}"
        self._lock = threading.RLock()
        self._connection: Any = None
        self._closed = False
        forks.register(self)

    @staticmethod
    @abstractmethod
    def _kept(known: list[int]) -> Any:
        """Facts as this database keeps them."""

    @abstractmethod
    def _connect(self) -> tuple[Any, bool]:
        """A connection to a database that has the tables, and whether they were there before they had facts."""

    @abstractmethod
    def _rows(self, statement: str, values: tuple[Any, ...]) -> Sequence[Any]:
        """What a statement answers."""

    @abstractmethod
    def _transaction(self, doing: str) -> AbstractContextManager[Any]:
        """The connection, in a transaction that is durable when the block ends."""

    def reset_after_fork(self) -> None:
        """In a forked child: a connection of its own."""
        self._lock = threading.RLock()
        forks.keep_alive(self._connection)
        self._connection = None

    def info(self, task: str, id: str) -> CheckpointInfo:
        return container.read_header(bytes(self._one(Buffer, "header", task, id)[0]))

    def size(self, task: str, id: str) -> int:
        return int(self._one(int, "length(header) + length(payload)", task, id)[0])

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
        where, values = conditions(query, self._mark)
        for fact in facts.wanted(query):
            where += f" AND (facts IS NULL OR {self._has})"
            values.append(self._kept([fact]))
        take = query.limit
        while True:
            rows = self._newest_first("task, id, header", where, tuple(values), () if take is None else (take,))
            found = [info for info in infos(rows) if query.matches(info)]
            if query.limit is None or take is None or len(found) >= query.limit or len(rows) < take:
                return found[: query.limit]
            take *= 64  # some are damaged, or only seemed to match. From the start again: each answer is of one moment

    def ids(self, task: str) -> tuple[str, ...]:
        rows = self._rows(f"SELECT id FROM {self._table} WHERE task = {self._mark}", (task,))  # noqa: S608
        return tuple(sound(str, [row[0] for row in rows]))

    def newest(self, task: str) -> str | None:
        rows = self._newest_first("id", f"task = {self._mark}", (task,), (1,))
        return next(iter(sound(str, [row[0] for row in rows])), None)

    def tasks(self) -> tuple[str, ...]:
        rows = self._rows(f"SELECT DISTINCT task FROM {self._table}", ())  # noqa: S608
        return tuple(sorted(sound(str, [row[0] for row in rows])))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop()

    def _newest_first(self, column: str, where: str, values: tuple[Any, ...], limit: tuple[int, ...]) -> Sequence[Any]:
        end = f" LIMIT {self._mark}" if limit else ""
        return self._rows(f"SELECT {column} FROM {self._table} WHERE {where} ORDER BY created DESC, id DESC{end}", (*values, *limit))  # noqa: S608

    def _one(self, kind: Any, columns: str, task: str, id: str, more: tuple[Any, ...] = ()) -> Sequence[Any]:
        """Columns of that type, of one row."""
        rows = self._rows(f"SELECT {columns} {self._of_one}", (*more, task, id))
        if not rows:
            raise self._missing(task, id)
        return sound(kind, rows[0])

    def _delete(self, connection: Any, task: str, id: str) -> None:
        if not connection.execute(f"DELETE {self._of_one}", (task, id)).rowcount:
            raise self._missing(task, id)

    def _missing(self, task: str, id: str) -> CheckpointNotFoundError:
        return CheckpointNotFoundError(f"{task!r} has no checkpoint {id!r} in {self.location}")

    def _opened(self) -> Any:
        if self._closed:
            raise StorageError("this store was closed", code="storage.closed", retryable=False)
        if self._connection is None:
            self._connection, without_facts = self._connect()
            if without_facts:
                self._add_facts()
                return self._opened()  # for the connection may be lost meanwhile
        return self._connection

    def _add_facts(self) -> None:
        """To what is there already. Whatever keeps it from that: queries are slower for it, and not wrong."""
        mark, last = self._mark, ("", "")
        old = f"facts IS NULL AND stored_size <= {_SMALL} AND (task, id) > ({mark}, {mark}) ORDER BY task, id LIMIT {_PORTION}"
        add = f"UPDATE {self._table} SET facts = {mark} WHERE task = {mark} AND id = {mark} AND created = {mark}"  # noqa: S608
        with suppress(CheckpointError):
            while rows := self._rows(f"SELECT task, id, header FROM {self._table} WHERE {old}", last):  # noqa: S608
                last = rows[-1][:2]
                known = [(self._facts(info), info.task, info.id, microseconds(info.created)) for info in infos(rows)]
                with self._transaction("adding facts to") as connection, closing(connection.cursor()) as cursor:
                    cursor.executemany(add, known)

    def _facts(self, info: CheckpointInfo) -> Any:
        known = facts.of(info)
        return None if known is None else self._kept(known)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
