"""The tables of exceptions, with real errors of the libraries that are installed."""

from __future__ import annotations

import bz2
import gzip
import importlib
import io
import json
import lzma
import os
import pickle
import sqlite3
import ssl
import threading
import urllib.error
import warnings
import zipfile
import zlib
from collections import deque

import msgspec
import pytest

from ckpt_observe.record.error_lookup import NO_FAILURE
from ckpt_observe.record.error_tables import DEFAULTS, MESSAGES, PHASE_DEFAULTS, TYPES
from ckpt_observe.record.failures import classify
from ckpt_observe.record.native_codes import NATIVE_CODES
from ckpt_observe.semconv.values import ERROR_CODES, PHASES

TYPE_NAMES = sorted({*TYPES, *DEFAULTS, *MESSAGES, *NATIVE_CODES, *(name for table in PHASE_DEFAULTS.values() for name in table)})
OTHER_NAMES = {"pickle.PicklingError", "pickle.UnpicklingError"}
"""Types with another name in CPython, where a C module replaces the Python one."""


def failure_of(function):
    with pytest.raises(Exception) as caught:
        function()
    return classify(caught.value)


def endless_list():
    items = []
    items.append(items)
    return items


def code_of(function):
    return failure_of(function).code


def test_tables_are_closed():
    """Every code in every table is registered, and every phase too."""
    codes = {*TYPES.values(), *DEFAULTS.values(), *(code for rows in MESSAGES.values() for _, code in rows)}
    codes |= {code for table in PHASE_DEFAULTS.values() for code in table.values()}
    codes |= {code for sources in NATIVE_CODES.values() for _, table in sources for code in table.codes.values()}
    assert codes <= {*ERROR_CODES, *NO_FAILURE}
    assert PHASE_DEFAULTS.keys() <= PHASES.keys()


def test_types_exist():
    """Every type in the tables whose library is installed has this name there."""
    checked, wrong = set(), []
    for name in TYPE_NAMES:
        module, _, attribute = name.rpartition(".")
        with warnings.catch_warnings(action="ignore"):
            try:
                library = importlib.import_module(module)
            except ImportError:
                continue
        checked.add(module.partition(".")[0])
        kind = getattr(library, attribute, None)
        if kind is None or f"{kind.__module__}.{kind.__qualname__}" != name:
            wrong.append(name)
    assert set(wrong) <= OTHER_NAMES
    assert {"builtins", "sqlite3", "msgspec"} <= checked


class TestSqlite:
    """Errors of the real SQLite."""

    @pytest.fixture
    def path(self, tmp_path):
        path = tmp_path / "checkpoints.db"
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE checkpoints (id INTEGER PRIMARY KEY, state BLOB NOT NULL)")
        connection.close()
        return path

    @pytest.fixture
    def connection(self, path):
        connection = sqlite3.connect(path, timeout=0, isolation_level=None)
        yield connection
        connection.close()

    def save(self, connection, state=b"x", id=None):
        connection.execute("INSERT INTO checkpoints VALUES (?, ?)", (id, state))

    def test_lock(self, path, connection):
        """Another writer holds the lock: a conflict that a retry can solve."""
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        failure = failure_of(lambda: self.save(connection))
        other.close()
        assert (failure.code, failure.error_class, failure.retryable) == ("conflict.locked", "conflict", True)

    def test_stale_snapshot(self, path, connection):
        """An extended code (SQLITE_BUSY_SNAPSHOT) is found by its primary code."""
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM checkpoints").fetchone()
        other = sqlite3.connect(path, isolation_level=None)
        self.save(other)
        other.close()
        with pytest.raises(sqlite3.OperationalError) as caught:
            self.save(connection)
        assert caught.value.sqlite_errorname == "SQLITE_BUSY_SNAPSHOT"
        assert classify(caught.value).code == "conflict.locked"

    def test_full(self, connection):
        """The database has reached its size limit, which gives the same error as a full disk."""
        connection.execute("PRAGMA max_page_count = 4")
        assert code_of(lambda: self.save(connection, bytes(100_000))) == "storage.no_space"

    def test_read_only(self, path):
        """The database was opened read-only."""
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        assert code_of(lambda: self.save(connection)) == "storage.read_only"
        connection.close()

    def test_damaged_page(self, path):
        """A page was overwritten."""
        path.write_bytes(path.read_bytes()[:4096] + b"\xff" * 4096)
        connection = sqlite3.connect(path)
        assert code_of(lambda: connection.execute("SELECT * FROM checkpoints").fetchall()) == "integrity.malformed"
        connection.close()

    def test_not_a_database(self, path):
        """The file contains something else."""
        path.write_bytes(b"not a database" * 1000)
        connection = sqlite3.connect(path)
        assert code_of(lambda: connection.execute("SELECT * FROM checkpoints")) == "integrity.malformed"
        connection.close()

    def test_missing_directory(self, tmp_path):
        """SQLite does not say why it cannot open a file."""
        assert code_of(lambda: sqlite3.connect(tmp_path / "missing" / "x.db")) == "storage.cannot_open"

    def test_same_id_twice(self, connection):
        """The primary key exists."""
        self.save(connection, id=1)
        assert code_of(lambda: self.save(connection, id=1)) == "conflict.exists"

    def test_other_constraint(self, connection):
        """The table does not accept the row."""
        assert code_of(lambda: self.save(connection, None)) == "configuration.invalid"

    def test_missing_table(self, connection):
        """The store was not set up."""
        assert code_of(lambda: connection.execute("SELECT * FROM writes")) == "configuration.invalid"

    def test_too_large(self, connection):
        """A value is longer than the limit of the connection."""
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1000)
        assert code_of(lambda: self.save(connection, bytes(100_000))) == "storage.too_large"

    def test_not_authorized(self, connection):
        """An authorizer refuses the statement."""
        connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
        assert code_of(lambda: self.save(connection)) == "storage.permission"

    def test_interrupt(self, connection):
        """`interrupt()` is a cancellation."""
        connection.set_progress_handler(lambda: 1, 1)
        failure = failure_of(lambda: self.save(connection))
        assert (failure.code, failure.outcome) == ("cancelled.requested", "cancelled")

    def test_closed(self, path):
        """The connection was closed."""
        connection = sqlite3.connect(path)
        connection.close()
        assert code_of(lambda: self.save(connection)) == "storage.closed"

    def test_other_thread(self, connection):
        """A connection of another thread cannot be used."""
        failures = []
        thread = threading.Thread(target=lambda: failures.append(code_of(lambda: self.save(connection))))
        thread.start()
        thread.join()
        assert failures == ["configuration.unsupported"]

    @pytest.mark.parametrize("value", [object(), 2**64])
    def test_value_that_cannot_be_bound(self, connection, value):
        """SQLite has no such type."""
        assert code_of(lambda: self.save(connection, value)) == "serialization.unsupported_type"


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda: json.dumps({1, 2}), "serialization.unsupported_type"),
        (lambda: json.dumps(endless_list()), "serialization.unsupported_type"),
        (lambda: json.loads("{"), "serialization.malformed"),
        (lambda: pickle.dumps(threading.Lock()), "serialization.unsupported_type"),
        (lambda: pickle.dumps(lambda: 0), "serialization.unsupported_type"),
        (lambda: pickle.loads(b"\x80\x05garbage"), "serialization.malformed"),
        (lambda: msgspec.json.encode(object()), "serialization.unsupported_type"),
        (lambda: msgspec.msgpack.decode(b"\xc1"), "serialization.malformed"),
        (lambda: zlib.decompress(b"garbage"), "compression.malformed"),
        (lambda: gzip.decompress(b"garbage"), "compression.malformed"),
        (lambda: gzip.decompress(gzip.compress(bytes(1000))[:-9]), "compression.malformed"),
        (lambda: lzma.decompress(b"garbage"), "compression.malformed"),
        (lambda: bz2.BZ2File(io.BytesIO(bz2.compress(bytes(1000))[:-9])).read(), "compression.malformed"),
        (lambda: zipfile.ZipFile(io.BytesIO(b"garbage")), "integrity.malformed"),
        (lambda: os.stat(os.path.join(__file__, "x")), "configuration.invalid"),
        (lambda: os.open(os.path.dirname(__file__), os.O_RDWR), "configuration.invalid"),
        (lambda: os.stat("x" * 5000), "configuration.invalid"),
    ],
)
def test_standard_library(function, code):
    """Errors of the standard library and of msgspec."""
    assert code_of(function) == code


def test_numbers_that_are_no_errno():
    """SSLError has its own numbers in `errno`: 1 is not EPERM."""
    assert classify(ssl.SSLError(1, "[SSL] internal error")).code == "unavailable.connection"
    assert classify(ssl.SSLCertVerificationError(1, "self-signed")).code == "configuration.invalid"


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "permission.authentication"), (404, "not_found.path"), (503, "unavailable.overloaded"), (507, "storage.no_space")],
)
def test_http_status(status, code):
    """The status of a response says what the type does not."""
    assert classify(urllib.error.HTTPError("http://x", status, "x", {}, None)).code == code


class Changing:
    """A value that changes the collection it is in while it is serialized, as another thread may."""

    def __init__(self, change):
        self.change = change

    def __reduce__(self):
        self.change()
        return str, ()


@pytest.mark.parametrize("protocol", [2, 5])
def test_state_that_changes_while_it_is_serialized(protocol):
    """A retry can succeed, unlike with a value that cannot be serialized."""
    state = {}
    state.update({number: Changing(lambda: state.update({len(state): 1})) for number in range(3)})
    failure = failure_of(lambda: pickle.dumps(state, protocol))
    assert (failure.code, failure.retryable) == ("serialization.concurrent_change", True)
    items = deque([1, 2, 3])
    assert code_of(lambda: [items.append(item) for item in items]) == "serialization.concurrent_change"
