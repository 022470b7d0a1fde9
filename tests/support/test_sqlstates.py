"""One table of PostgreSQL's errors."""

from __future__ import annotations

import pytest

from ckpt_observe.errors import AccessError, ConflictError, LocationError, StorageError, UnavailableError
from ckpt_observe.semconv.values import ERROR_CODES
from ckpt_observe.support import sqlstates
from ckpt_observe.support.advice import ADVICE

ROWS = {**sqlstates._TABLE, **{text: row for text, row, _ in sqlstates._CONNECTION_FAILURES}}


@pytest.mark.parametrize("key", ROWS)
def test_rows_agree_with_the_registry_of_codes(key):
    """Class and retryability of a store's exception are those of its code."""
    error_type, code, retryable = ROWS[key]
    assert (error_type.error_class, retryable) == (ERROR_CODES[code].error_class, ERROR_CODES[code].retryable)


@pytest.mark.parametrize(
    ("state", "error_type", "code"),
    [
        ("40001", ConflictError, "conflict.locked"),
        ("23505", ConflictError, "conflict.exists"),
        ("23502", LocationError, "configuration.invalid"),
        ("28P01", AccessError, "permission.authentication"),
        ("57P03", UnavailableError, "unavailable.connection"),
        ("99999", StorageError, "storage.io"),
    ],
)
def test_exceptions_of_a_state(state, error_type, code):
    """A state is looked up before its class."""
    error = sqlstates.to_checkpoint_error(state, "saving")
    assert (type(error), error.code, str(error)) == (error_type, code, f"saving. {ADVICE[code]}")


def test_connection_failures():
    """The message says why, in our words: the server's may contain anything."""
    error = sqlstates.connection_to_checkpoint_error('FATAL:  database "x" does not exist', "saving")
    assert (type(error), error.retryable) == (LocationError, False)
    assert str(error) == f"saving: the database does not exist or accepts no connections. {ADVICE['configuration.invalid']}"
    error = sqlstates.connection_to_checkpoint_error("server closed the connection unexpectedly", "saving")
    assert (type(error), error.retryable) == (UnavailableError, True)
