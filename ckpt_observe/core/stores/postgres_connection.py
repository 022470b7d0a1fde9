"""A connection to PostgreSQL that does not wait for ever for a server that hangs.

psycopg has no timeout for statements. One on the server (`statement_timeout`) does not help if the server itself hangs, and those of TCP
only notice a dead network: the kernel of a hanging server still acknowledges what it receives.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from time import monotonic
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

_CONNECT_SECONDS = 10
SILENCE_SECONDS = 30.0
"""How long a server may be silent during a statement. Large checkpoints take longer, but the connection is not silent."""
SETUP_SILENCE_SECONDS = 600.0
"""The same while tables and indexes are created or changed, which takes long on a large table."""
_LONGEST_WAIT = 0.2
"""Seconds. psycopg waits 0.1 for an event; in what goes beyond, this process did not run."""


class SilentServerError(psycopg.OperationalError):  # type: ignore[misc]  # psycopg may not be installed
    """The server did not answer in time."""


class PatientConnection(psycopg.Connection[Any]):  # type: ignore[misc]
    """A connection that is closed with SilentServerError if nothing is received or sent for `silence_seconds`.

    Only time that this process spends waiting counts. One that does not run itself, because it is stopped or another thread keeps the GIL,
    cannot say that the server was silent.
    """

    silence_seconds = SETUP_SILENCE_SECONDS

    def wait(self, gen: Any, *arguments: Any, **options: Any) -> Any:
        """Run a conversation with the server. All methods of psycopg call this."""
        return super().wait(self._watch(gen), *arguments, **options)

    def _watch(self, conversation: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Pass on the events of the connection. psycopg sends a false value ten times per second if there are none."""
        event = None
        silence = 0.0
        while True:
            try:
                request = conversation.send(event)
            except StopIteration as end:
                return end.value
            began = monotonic()
            event = yield request
            silence = 0.0 if event else silence + min(monotonic() - began, _LONGEST_WAIT)
            if silence > self.silence_seconds:
                conversation.close()
                self.pgconn.finish()  # what the server does with the statement is not known
                raise SilentServerError(f"the server was silent for {self.silence_seconds:g} seconds")


def connect(url: str) -> PatientConnection:
    """Connect to a server. `connect_timeout` of the URL and `PGCONNECT_TIMEOUT` have precedence over our own timeout."""
    has_timeout = "connect_timeout" in conninfo_to_dict(url) or "PGCONNECT_TIMEOUT" in os.environ
    options = {} if has_timeout else {"connect_timeout": _CONNECT_SECONDS}
    connection: PatientConnection = PatientConnection.connect(url, autocommit=True, **options)
    return connection
