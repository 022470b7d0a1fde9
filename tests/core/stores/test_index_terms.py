"""Queries for parameters and tags use the index: same results as reading every header, without reading them."""

from __future__ import annotations

import datetime as dt
import enum
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from threading import Barrier

import pytest

from ckpt_observe.core import Checkpointer, Query
from ckpt_observe.core.format import container
from ckpt_observe.core.stores import Store, sql
from ckpt_observe.core.stores.sqlite import SqliteStore
from ckpt_observe.errors import StorageError

VERSION_1 = """
CREATE TABLE checkpoints (
    task TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL, step INTEGER, status TEXT NOT NULL, error_class TEXT,
    stored_size INTEGER NOT NULL, header BLOB NOT NULL, payload BLOB NOT NULL, PRIMARY KEY (task, id));
CREATE TABLE quarantine (task TEXT NOT NULL, id TEXT NOT NULL, header BLOB NOT NULL, payload BLOB NOT NULL);
CREATE INDEX checkpoints_by_task ON checkpoints (task, created, id);
CREATE INDEX checkpoints_by_time ON checkpoints (created, id, step, status, error_class, stored_size);
PRAGMA user_version = 1;
"""
OLD_COLUMNS = "task, id, created, step, status, error_class, stored_size, header, payload"


class Colour(enum.StrEnum):
    RED = "red"


SCALARS = [0, -0.0, 1, 1.0, True, False, 0.1, 2**53 + 1, 2.0**53, -7, 1e300, "1", "", "red", Colour.RED, "☃\n\0", None]
NON_SCALARS = [float("nan"), float("inf"), Decimal("0.1"), dt.date(2026, 1, 2), b"red", [1], (1,), {"a": 1}, {1}]
LOADED_AS = ["2026-01-02", "0.1", "cmVk", 10**400]
"""What some of these are loaded as, and a number that none is."""


@pytest.fixture
def store(tmp_path):
    with SqliteStore(f"sqlite://{tmp_path}/checkpoints.db") as store:
        yield store


@pytest.fixture
def headers_read(monkeypatch):
    """A list to which every header that is read is added."""
    headers = []
    original = container.read_header
    monkeypatch.setattr(container, "read_header", lambda line: headers.append(line) or original(line))
    return headers


def test_only_headers_that_match_are_read(store, headers_read):
    """Finding a parameter or tag among many checkpoints reads only the matching headers, and no more than the limit."""
    checkpointer = Checkpointer(store)
    for n in range(40):
        checkpointer.save("t", {}, step=n, metadata={"lr": n % 10, "configuration": {"seed": n}}, tags=["best"] if n == 7 else [])
    for query, steps in (
        (Query(tag="best"), [7]),
        (Query(parameters={"seed": 30}), [30]),
        (Query(parameters={"lr": 3, "seed": 13}), [13]),
        (Query(task="t", parameters={"lr": 3}, limit=2), [33, 23]),
        (Query(parameters={"lr": 10}), []),
    ):
        headers_read.clear()
        assert [info.step for info in store.find(query)] == steps
        assert len(headers_read) == len(steps)


@pytest.mark.parametrize("place", ["metadata", "configuration"])
def test_index_gives_the_same_results_as_reading_every_header(store, place):
    """A value is found by every value that is equal to it after the header was read, whatever it was when it was saved."""
    checkpointer = Checkpointer(store)
    for value in SCALARS + NON_SCALARS:
        entry = {"x": value}
        checkpointer.save("t", {}, metadata=entry if place == "metadata" else {"configuration": entry, "y": 1}, tags=[str(value)])
    for value in SCALARS + NON_SCALARS + LOADED_AS:
        for query in (Query(parameters={"x": value}), Query(parameters={"x": value}, limit=2), Query(tag=str(value)[:99])):
            assert store.find(query) == Store.find(store, query)
    assert len(store.find(Query(parameters={"x": 1}))) == 3


def test_metadata_with_many_entries_is_found_but_not_indexed(store):
    """The entries of a table in the metadata can be found, but the index does not contain them."""
    Checkpointer(store).save("t", {}, metadata={f"row{n}": n for n in range(10_000)})
    assert len(store.find(Query(parameters={"row7": 7}))) == 1
    assert store._open().execute("SELECT facts FROM checkpoints").fetchone() == (None,)


def test_limit_skips_damaged_checkpoints(store):
    """A query returns the newest two readable checkpoints, even if the newest two are damaged."""
    checkpointer = Checkpointer(store)
    saved = [checkpointer.save("t", {}, metadata={"lr": 1}) for _ in range(5)]
    store._open().execute("UPDATE checkpoints SET header = x'00' WHERE id IN (?, ?)", (saved[4].id, saved[3].id))
    for query in (Query(limit=2), Query(parameters={"lr": 1}, limit=2), Query(task="t", limit=2)):
        assert store.find(query) == [saved[2], saved[1]]


def create_version_1(path, rows):
    """Create a database as version 1 did."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(VERSION_1)
    connection.executemany(f"INSERT INTO checkpoints ({OLD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    return connection


@pytest.fixture
def rows(store):
    """Rows of seven checkpoints, one of them large and one damaged."""
    checkpointer = Checkpointer(store)
    for n in range(7):
        checkpointer.save(
            "t", {"n": n, "x": "x" * 100_000 if n == 2 else ""}, id=str(n), metadata={"lr": n % 2}, tags=["best"] if n == 5 else []
        )
    rows = store._open().execute(f"SELECT {OLD_COLUMNS} FROM checkpoints").fetchall()
    return [(*row[:7], b"x", row[8]) if row[1] == "6" else row for row in rows]


def test_older_database_is_upgraded_by_several_stores_at_once(tmp_path, rows, headers_read, monkeypatch):
    """Checkpoints of version 1 can be loaded, and found by their parameters like new ones."""
    monkeypatch.setattr(sql, "_MIGRATION_ROWS", 2)
    create_version_1(tmp_path / "old.db", rows).close()
    together = Barrier(4)
    stores = [SqliteStore(f"sqlite://{tmp_path}/old.db") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda store: (together.wait(), store.newest("t"))[1], stores)) == ["6"] * 4
    checkpointer = Checkpointer(stores[0])
    checkpointer.save("t", {"n": 7}, id="7", metadata={"lr": 1})
    assert [checkpointer.load("t", str(n))["n"] for n in (0, 1, 2, 3, 4, 5, 7)] == [0, 1, 2, 3, 4, 5, 7]
    headers_read.clear()
    assert [info.id for info in stores[0].find(Query(parameters={"lr": 1}))] == ["7", "5", "3", "1"]
    assert len(headers_read) == 6  # also the large one, which got no index terms, and the damaged one
    assert [info.id for info in stores[0].find(Query(tag="best"))] == ["5"]
    for store in stores:
        store.close()


def test_older_program_may_keep_writing_after_the_upgrade(tmp_path, rows):
    """A program that had the database open before the upgrade goes on saving, and its checkpoints are found."""
    with create_version_1(tmp_path / "old.db", rows[:3]) as connection, SqliteStore(f"sqlite://{tmp_path}/old.db") as store:
        assert store.newest("t") == "2"
        connection.execute(f"INSERT INTO checkpoints ({OLD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows[5])
        assert [info.id for info in store.find(Query(tag="best"))] == ["5"]
    connection.close()


def test_failed_upgrade_of_rows_is_ignored(tmp_path, rows, monkeypatch):
    """Adding index terms to old rows is an optimization; if it fails, everything is still found."""
    create_version_1(tmp_path / "old.db", rows).close()

    def refuse(store, action):
        raise StorageError("no")

    monkeypatch.setattr(SqliteStore, "_transaction", refuse)
    with SqliteStore(f"sqlite://{tmp_path}/old.db") as store:
        assert [info.id for info in store.find(Query(parameters={"lr": 1}))] == ["5", "3", "1"]
