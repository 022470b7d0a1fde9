"""Maps errors of PostgreSQL to error codes: one table for the store of `core` and for the classification of other libraries' errors."""

from __future__ import annotations

from typing import Final

from ckpt_observe.errors import (
    AccessError,
    CapacityError,
    CheckpointError,
    ConflictError,
    DeadlineError,
    IntegrityError,
    LocationError,
    SerializationError,
    StorageError,
    UnavailableError,
)
from ckpt_observe.support.advice import add_advice

_Row = tuple[type[CheckpointError], str, bool]

_NO_CONNECTION: Final[_Row] = (UnavailableError, "unavailable.connection", True)
_OVERLOADED: Final[_Row] = (UnavailableError, "unavailable.overloaded", True)
_NO_LOGIN: Final[_Row] = (AccessError, "permission.authentication", False)
_NOT_ALLOWED: Final[_Row] = (AccessError, "storage.permission", False)
_NOT_SET_UP: Final[_Row] = (LocationError, "configuration.invalid", False)
_NO_FEATURE: Final[_Row] = (LocationError, "configuration.unsupported", False)
_LOCKED: Final[_Row] = (ConflictError, "conflict.locked", True)
_TOO_LATE: Final[_Row] = (DeadlineError, "timeout.deadline", True)
_TOO_LARGE: Final[_Row] = (CapacityError, "storage.too_large", False)
_DAMAGED: Final[_Row] = (IntegrityError, "integrity.malformed", False)
_IO_ERROR: Final[_Row] = (StorageError, "storage.io", True)

_TABLE: Final[dict[str, _Row]] = {
    "08": _NO_CONNECTION,
    "0A": _NO_FEATURE,
    "22": (SerializationError, "serialization.unsupported_type", False),  # such as text with a NUL character
    "22001": _TOO_LARGE,
    "23": _NOT_SET_UP,  # another constraint than ours: the tables are not those of the library
    "23505": (ConflictError, "conflict.exists", False),
    "25006": (StorageError, "storage.read_only", False),
    "25P03": _TOO_LATE,
    "25P04": _TOO_LATE,
    "26": _NOT_SET_UP,  # a prepared statement is gone: a connection pooler that does not support them
    "28": _NO_LOGIN,
    "3D": _NOT_SET_UP,  # no such database
    "3F": _NOT_SET_UP,  # no such schema
    "40": _LOCKED,  # serialization failure, deadlock
    "42": _NOT_SET_UP,  # no such table or column
    "42501": _NOT_ALLOWED,
    "53": _OVERLOADED,
    "53100": (CapacityError, "storage.no_space", False),
    "53200": (CapacityError, "memory.exhausted", False),
    "53400": (CapacityError, "storage.quota", False),  # such as temp_file_limit
    "54": _TOO_LARGE,
    "55006": _LOCKED,
    "55P03": _LOCKED,
    "57": _NO_CONNECTION,  # the server is starting or shutting down
    "57014": _TOO_LATE,
    "57P04": _NOT_SET_UP,  # the database was dropped
    "57P05": _TOO_LATE,
    "58": _IO_ERROR,
    "XX": _IO_ERROR,
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
}
"""By SQLSTATE, or its class, which is its first two characters (https://www.postgresql.org/docs/current/errcodes-appendix.html): the
exception that the store raises, its code, and whether a retry can help; the latter two as in `semconv.values.ERROR_CODES`."""

_CONNECTION_FAILURES: Final[tuple[tuple[str, _Row, str], ...]] = (
    ("authentication failed", _NO_LOGIN, "the server does not accept this user and password"),
    ("no password supplied", _NO_LOGIN, "the server requires a password"),
    ("pg_hba.conf", _NO_LOGIN, "pg_hba.conf of the server does not admit this user, host or database"),
    ("too many c", _OVERLOADED, "the server has too many connections"),  # clients already; connections for role, for database
    ("remaining connection slots", _OVERLOADED, "the server has too many connections"),
    ("permission denied for database", _NOT_ALLOWED, "this user may not connect to the database"),
    ('role "', _NO_LOGIN, "the user does not exist or may not log in"),
    ('database "', _NOT_SET_UP, "the database does not exist or accepts no connections"),
    ("connection option", _NOT_SET_UP, "an option of the URL has an invalid value"),
    ("does not support SSL", _NOT_SET_UP, "the server does not support TLS, which the URL requires"),
    ("certificate verify failed", _NOT_SET_UP, "the certificate of the server is not trusted"),
    ("timeout expired", _TOO_LATE, "the server did not answer in time"),
)
"""Texts in the message of a failed connection, because libpq does not pass on its SQLSTATE. The first that occurs counts."""

ERROR_CODES_BY_SQLSTATE: Final = {state: code for state, (_, code, _) in _TABLE.items()}
ERROR_CODES_BY_CONNECTION_MESSAGE: Final = tuple((text, code) for text, (_, code, _), _ in _CONNECTION_FAILURES)


def to_checkpoint_error(state: str, action: str) -> CheckpointError:
    """Return the CheckpointError for an SQLSTATE; `storage.io` if the table has no row for it. `action` is its message."""
    error_type, code, retryable = _TABLE.get(state) or _TABLE.get(state[:2]) or _IO_ERROR
    return error_type(add_advice(action, code), code=code, retryable=retryable)


def connection_to_checkpoint_error(message: str, action: str) -> CheckpointError:
    """Return the CheckpointError for a connection that could not be made or was lost. `action` starts its message."""
    for text, (error_type, code, retryable), reason in _CONNECTION_FAILURES:
        if text in message:
            return error_type(add_advice(f"{action}: {reason}", code), code=code, retryable=retryable)
    error_type, code, retryable = _NO_CONNECTION
    message = f"{action}: the server cannot be reached, or closed the connection"
    return error_type(add_advice(message, code), code=code, retryable=retryable)
