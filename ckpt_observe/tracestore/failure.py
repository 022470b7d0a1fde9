"""What SQLite says, in words that help: every error of the store becomes a TraceStoreError with advice, from one table."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from ckpt_observe.errors import TraceStoreError

ELSEWHERE: Final = "move it away or set CKPT_OBSERVE_DIR to another directory; it was not changed"


class _Failure(NamedTuple):
    what: str
    advice: str


_FAILURES: Final = {
    sqlite3.SQLITE_BUSY: _Failure("is locked by another process", "it is tried again"),
    sqlite3.SQLITE_LOCKED: _Failure("is locked by another thread", "it is tried again"),
    sqlite3.SQLITE_PROTOCOL: _Failure("is locked by another process", "it is tried again"),
    sqlite3.SQLITE_FULL: _Failure("has no room to grow", "free some space on its disk"),
    sqlite3.SQLITE_IOERR: _Failure("could not be read or written", "check its disk"),
    sqlite3.SQLITE_CANTOPEN: _Failure("cannot be opened", "check its directory and permissions"),
    sqlite3.SQLITE_READONLY: _Failure("cannot be written", "check its permissions"),
    sqlite3.SQLITE_PERM: _Failure("cannot be accessed", "check its permissions"),
    sqlite3.SQLITE_NOMEM: _Failure("needs more memory than there is", "it is tried again"),
    sqlite3.SQLITE_NOTADB: _Failure("is not a database", ELSEWHERE),
    sqlite3.SQLITE_CORRUPT: _Failure("is damaged", "move it away, and a new one is made; `sqlite3 FILE .recover` may save what it held"),
}
"""By primary result code. All may pass, some by a person's hand; until then the journal keeps what was to be written."""

_UNKNOWN: Final = _Failure("refused", "please report this")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns errors of SQLite, of the file system and of values that no column takes into TraceStoreError."""
    try:
        yield
    except sqlite3.Error as error:
        # The low byte is the primary code; the rest says which lock or which system call.
        failure = _FAILURES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, _UNKNOWN)
        message = f"the trace store {path} {failure.what} ({error}): {failure.advice}"
        raise TraceStoreError(message) from error
    except OSError as error:
        raise TraceStoreError(f"the trace store {path} cannot be opened: {error}") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise TraceStoreError(f"a span does not go into the trace store {path}, or is damaged there: {error}", retryable=False) from error
