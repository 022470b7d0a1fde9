"""The databases of savers as oracles: what they contain is what was saved."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from typing import NamedTuple

from ckpt_observe.semconv import attributes as names


class Database(NamedTuple):
    """A database that a program writes through a saver, and the test reads directly."""

    saver_url: str
    path: str

    def execute(self, statement):
        if self.saver_url.startswith(("sqlite", "aiosqlite")):
            with closing(sqlite3.connect(self.path)) as connection, connection:
                return connection.execute(statement).fetchall()
        import psycopg  # noqa: PLC0415

        with psycopg.connect(self.path) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    @property
    def is_sqlite(self):
        return "sqlite" in self.saver_url

    def checkpoints(self):
        """Thread, namespace, ID and parent ID of each row."""
        return Counter(self.execute("SELECT thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id FROM checkpoints"))

    def sizes(self):
        """Bytes of each checkpoint by ID. PostgreSQL has it in parts."""
        return dict(self.execute("SELECT checkpoint_id, length(checkpoint) FROM checkpoints"))

    def writes(self):
        """Thread, namespace, checkpoint ID and task ID, for which there are pending writes."""
        table = "writes" if self.is_sqlite else "checkpoint_writes"
        return set(self.execute(f"SELECT DISTINCT thread_id, checkpoint_ns, checkpoint_id, task_id FROM {table}"))


def saved(spans):
    """The same as `Database.checkpoints`, from the successful saves."""
    return Counter(
        (
            span.attributes[names.TASK_ID],
            span.attributes.get("checkpoint.namespace", ""),
            span.attributes[names.ID],
            span.attributes.get("checkpoint.parent_id"),
        )
        for span in spans.operations("save", outcome="ok")
    )


def appended(spans):
    """The same as `Database.writes`, from the successful appends."""
    return {
        (
            span.attributes[names.TASK_ID],
            span.attributes.get("checkpoint.namespace", ""),
            span.attributes[names.ID],
            span.attributes["checkpoint.writer.id"],
        )
        for span in spans.operations("append", outcome="ok")
    }


def compare(database, spans):
    """Fail if the database and the spans disagree."""
    assert saved(spans) == database.checkpoints()
    assert appended(spans) == database.writes()
    if database.is_sqlite:
        sizes = {span.attributes[names.ID]: span.attributes[names.SIZE_SERIALIZED] for span in spans.operations("save", outcome="ok")}
        assert sizes == database.sizes()
