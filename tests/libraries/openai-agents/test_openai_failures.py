"""Real failures of sessions have the right code and phase; items that the SDK skips without a word are counted."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from observation import Observation

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

FAILURES = {
    "locked": ("OperationalError", "append", "conflict.locked", "write", True),
    "locked_async": ("OperationalError", "append", "conflict.locked", "write", True),
    "unserializable": ("TypeError", "append", "serialization.unsupported_type", "serialize", False),
    "unserializable_sqlalchemy": ("TypeError", "append", "serialization.unsupported_type", "serialize", False),
    "closed": ("RuntimeError", "append", "storage.closed", None, False),
    "no_table": ("OperationalError", "load", "configuration.invalid", "read", False),
    "not_a_database": ("DatabaseError", "load", "integrity.malformed", "wait", False),  # opening the connection
}


SKIPPED = {
    "damaged": ("load", 3),
    "damaged_limited": ("load", 2),
    "damaged_popped": ("delete", {"role": "user", "content": "x"}),
}


class Run:
    """All failures, provoked in one process."""

    def __init__(self, directory):
        self.directory = directory
        observation = Observation(directory, Path(__file__).parent)
        self.results = observation.run("failures.py")
        self.spans = observation.spans()

    def attributes(self, kind, operation):
        """The attributes of the last operation of a session."""
        spans = [span for span in self.spans.operations(operation) if span.attributes[names.SESSION_ID] == kind]
        return max(spans, key=lambda span: span.start_unix_nano).attributes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return Run(tmp_path_factory.mktemp("failures"))


@pytest.mark.parametrize("kind", FAILURES)
def test_failure_is_classified(run, kind):
    """The failed operation has the code, phase and retryability of its cause; the program gets the exception that it always got."""
    exception, operation, code, phase, is_retryable = FAILURES[kind]
    assert run.results[kind] == exception
    attributes = run.attributes(kind, operation)
    assert (attributes[names.ERROR_CODE], attributes.get(names.ERROR_PHASE)) == (code, phase)
    assert attributes[names.ERROR_RETRYABLE] is is_retryable


@pytest.mark.parametrize("kind", SKIPPED)
def test_skipped_items_are_counted(run, kind):
    """The SDK skips rows that are not JSON, and the operation says how many. Control: the append before has none."""
    operation, result = SKIPPED[kind]
    assert run.results[kind] == result
    attributes = run.attributes(kind, operation)
    assert (attributes[names.OUTCOME], attributes[names.DAMAGED_COUNT]) == ("ok", 2)
    assert names.DAMAGED_COUNT not in run.attributes(kind, "append")


def test_item_that_cannot_be_authenticated_stays(run):
    """`EncryptedSession` asks with `is` whether `pop_item` is that of SQLiteSession, and deletes the item if it is not."""
    assert run.results["wrong_key"] == "InvalidToken"
    assert run.attributes("wrong_key", "delete")[names.ERROR_CODE] == "encryption.wrong_key"
    with closing(sqlite3.connect(run.directory / "wrong_key.db")) as connection:
        assert connection.execute("SELECT count(*) FROM agent_messages").fetchone() == (1,)
