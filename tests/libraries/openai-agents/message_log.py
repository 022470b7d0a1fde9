"""A log that SQLite itself keeps of the messages that are inserted and deleted: the oracle of the tests."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing

TRIGGERS = """
CREATE TABLE log (id INTEGER PRIMARY KEY, action TEXT, session TEXT, bytes INTEGER);
CREATE TRIGGER inserted AFTER INSERT ON agent_messages BEGIN
    INSERT INTO log (action, session, bytes) VALUES ('insert', new.session_id, length(CAST(new.message_data AS BLOB)));
END;
CREATE TRIGGER deleted AFTER DELETE ON agent_messages BEGIN
    INSERT INTO log (action, session, bytes) VALUES ('delete', old.session_id, length(CAST(old.message_data AS BLOB)));
END;
"""


def start_log(path):
    """Create the triggers, in a database whose tables exist."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(TRIGGERS)


def read_log(path):
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute("SELECT action, session, bytes FROM log ORDER BY id").fetchall()
        return [(action, session.removeprefix("inner "), size) for action, session, size in rows]


def check_log(rows, operations):
    """Check that the operations, in the order of their start, did exactly what the log says: each row in one operation."""
    rows, live = list(rows), Counter()
    for span in sorted(operations, key=lambda span: span.start_unix_nano):
        attributes = span.attributes
        action = {"append": "insert", "delete": "delete"}.get(attributes["checkpoint.operation"])
        if action is None:
            continue
        session = attributes["session.id"]
        count = attributes.get("checkpoint.count", live[session])  # clear_session deletes all rows of its session
        live[session] += count if action == "insert" else -count
        changed, rows = rows[:count], rows[count:]
        assert [row[:2] for row in changed] == [(action, session)] * count, (attributes, changed)
        if action == "insert":
            assert sum(row[2] for row in changed) == attributes["checkpoint.size.serialized"], (attributes, changed)
    assert rows == [], "rows that no operation accounts for"
