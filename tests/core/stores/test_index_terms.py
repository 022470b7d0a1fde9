"""Queries for parameters and tags, answered from an index: as by looking at each header, and without doing so."""

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
ODD = [float("nan"), float("inf"), Decimal("0.1"), dt.date(2026, 1, 2), b"red", [1], (1,), {"a": 1}, {1}]
READ_AS = ["2026-01-02", "0.1", "cmVk", 10**400]
"""What some of those come back as, and what nothing does."""


@pytest.fixture
def store(tmp_path):
    with SqliteStore(f"sqlite://{tmp_path}/checkpoints.db") as store:
        yield store


@pytest.fixture
def read(monkeypatch):
    """Every header that was read, in a list that grows."""
    headers = []
    original = container.read_header
    monkeypatch.setattr(container, "read_header", lambda line: headers.append(line) or original(line))
    return headers


def test_only_headers_that_match_are_read(store, read):
    """D6: a parameter or tag among many is found without looking at each, and a limit is not exceeded to find the newest."""
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
        read.clear()
        assert [info.step for info in store.find(query)] == steps
        assert len(read) == len(steps)


@pytest.mark.parametrize("where", ["metadata", "configuration"])
def test_answers_are_those_of_looking_at_each(store, where):
    """D6: a value is found by all that is equal to it once its header was read, whatever it was when it was saved."""
    checkpointer = Checkpointer(store)
    for value in SCALARS + ODD:
        entry = {"x": value}
        checkpointer.save("t", {}, metadata=entry if where == "metadata" else {"configuration": entry, "y": 1}, tags=[str(value)])
    for value in SCALARS + ODD + READ_AS:
        for query in (Query(parameters={"x": value}), Query(parameters={"x": value}, limit=2), Query(tag=str(value)[:99])):
            assert store.find(query) == Store.find(store, query)
    assert len(store.find(Query(parameters={"x": 1}))) == 3


def test_metadata_of_many_entries_are_found_and_take_no_room(store):
    """D6: whoever puts a table into the metadata finds its entries, and the index does not hold them."""
    Checkpointer(store).save("t", {}, metadata={f"row{n}": n for n in range(10_000)})
    assert len(store.find(Query(parameters={"row7": 7}))) == 1
    assert store._open().execute("SELECT facts FROM checkpoints").fetchone() == (None,)


def test_limit_is_filled_past_what_is_damaged(store):
    """D6: the newest two that can be read, though the two newest cannot."""
    checkpointer = Checkpointer(store)
    saved = [checkpointer.save("t", {}, metadata={"lr": 1}) for _ in range(5)]
    store._open().execute("UPDATE checkpoints SET header = x'00' WHERE id IN (?, ?)", (saved[4].id, saved[3].id))
    for query in (Query(limit=2), Query(parameters={"lr": 1}, limit=2), Query(task="t", limit=2)):
        assert store.find(query) == [saved[2], saved[1]]


def older(path, rows):
    """A database as version 1 made it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(VERSION_1)
    connection.executemany(f"INSERT INTO checkpoints ({OLD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    return connection


@pytest.fixture
def rows(store):
    """Of seven checkpoints, one of them large and one damaged."""
    checkpointer = Checkpointer(store)
    for n in range(7):
        checkpointer.save(
            "t", {"n": n, "x": "x" * 100_000 if n == 2 else ""}, id=str(n), metadata={"lr": n % 2}, tags=["best"] if n == 5 else []
        )
    rows = store._open().execute(f"SELECT {OLD_COLUMNS} FROM checkpoints").fetchall()
    return [(*row[:7], b"x", row[8]) if row[1] == "6" else row for row in rows]


def test_older_database_is_brought_on_by_several_at_once(tmp_path, rows, read, monkeypatch):
    """D7: what version 1 saved is loaded, and found by its parameters like what is saved now."""
    monkeypatch.setattr(sql, "_MIGRATION_ROWS", 2)
    older(tmp_path / "old.db", rows).close()
    together = Barrier(4)
    stores = [SqliteStore(f"sqlite://{tmp_path}/old.db") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda store: (together.wait(), store.newest("t"))[1], stores)) == ["6"] * 4
    checkpointer = Checkpointer(stores[0])
    checkpointer.save("t", {"n": 7}, id="7", metadata={"lr": 1})
    assert [checkpointer.load("t", str(n))["n"] for n in (0, 1, 2, 3, 4, 5, 7)] == [0, 1, 2, 3, 4, 5, 7]
    read.clear()
    assert [info.id for info in stores[0].find(Query(parameters={"lr": 1}))] == ["7", "5", "3", "1"]
    assert len(read) == 6  # and the large one, which was not written anew, and the damaged one
    assert [info.id for info in stores[0].find(Query(tag="best"))] == ["5"]
    for store in stores:
        store.close()


def test_older_program_that_still_writes_is_not_overlooked(tmp_path, rows):
    """D7: one that had the database open when it was brought on goes on saving, and what it saves is found."""
    with older(tmp_path / "old.db", rows[:3]) as connection, SqliteStore(f"sqlite://{tmp_path}/old.db") as store:
        assert store.newest("t") == "2"
        connection.execute(f"INSERT INTO checkpoints ({OLD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows[5])
        assert [info.id for info in store.find(Query(tag="best"))] == ["5"]
    connection.close()


def test_database_that_cannot_be_written_anew_is_used_all_the_same(tmp_path, rows, monkeypatch):
    """D7: adding to what was saved before is about speed; where it fails, everything is found."""
    older(tmp_path / "old.db", rows).close()

    def refuse(store, doing):
        raise StorageError("no")

    monkeypatch.setattr(SqliteStore, "_transaction", refuse)
    with SqliteStore(f"sqlite://{tmp_path}/old.db") as store:
        assert [info.id for info in store.find(Query(parameters={"lr": 1}))] == ["5", "3", "1"]
