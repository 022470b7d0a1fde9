"""Limits label values, so that the number of series is bounded however many tasks and keys a program names.

A label takes its values from a closed set or from a capped one. Capped sets are stored and shared by all processes, so a value keeps its
series after a restart. When a set is full, a value that was not used for a month makes room for a new one.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Any, Final

from ckpt_observe.semconv.metrics import LABEL_VALUES, METRICS, OTHER
from ckpt_observe.semconv.values import ERROR_CLASSES, OPERATIONS, OUTCOMES, PHASES

_CLOSED_SETS: Final = {"operation": OPERATIONS, "outcome": OUTCOMES, "error_class": ERROR_CLASSES}
UNUSED_DAYS: Final = 30
"""Days without use after which a value may be replaced."""
STATUS_SERIES: Final = "progress"
"""Rows of the table `series` with this name instead of a metric's hold an `OperationStatus`; their labels are operation and task."""
MAX_LENGTH: Final = 128
"""Maximum number of characters of a label value. Longer values are cut."""


class LabelLimiter:
    """Maps raw values to label values, one transaction at a time. After a failed transaction, discard this object: its cache is wrong."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._today = 0
        self._admitted: dict[tuple[str, str], str] = {}
        """Results of today, by label and value. A cached value is not marked as used in the database again, so that is done once a day."""
        self._full: set[str] = set()
        """Labels whose set is full today, without a value that may be replaced."""
        self.overflow: Counter[str] = Counter()
        """How often a value became `_other_` because the set of its label is full, by label. The caller reads and clears it."""

    def begin(self, today: int) -> None:
        """Prepare for a transaction. `today` is the number of days since 1970; on a new day the caches are cleared."""
        if today != self._today:
            self._today = today
            self._admitted.clear()
            self._full.clear()

    def __call__(self, name: str, raw: Any) -> str:
        """Return the value to use for a label: the raw value, cut to MAX_LENGTH, or `_other_`. None becomes an empty string."""
        if raw is None or raw == "":
            return ""
        value = str(raw)[:MAX_LENGTH]
        cached = self._admitted.get((name, value))
        if cached is not None:
            return cached
        result = self._limit(name, value)
        if result != OTHER:
            self._admitted[name, value] = result
        return result

    def _limit(self, name: str, value: str) -> str:
        closed_set = _CLOSED_SETS.get(name)
        if closed_set is not None:
            return value if value in closed_set else OTHER
        if (name == "phase" and value in PHASES) or self._admit(name, value):
            return value
        self.overflow[name] += 1
        return OTHER

    def _admit(self, name: str, value: str) -> bool:
        """Mark a value as used today, and add it to the set of its label if it is new. Return False if it is new and there is no room."""
        run = self._connection.execute
        if run("UPDATE label SET day = ? WHERE name = ? AND value = ?", (self._today, name, value)).rowcount:
            return True
        if name in self._full:
            return False
        if run("SELECT count(*) FROM label WHERE name = ?", (name,)).fetchone()[0] >= LABEL_VALUES and not self._make_room(name):
            self._full.add(name)
            return False
        run("INSERT INTO label (name, value, day) VALUES (?, ?, ?)", (name, value, self._today))
        return True

    def _make_room(self, name: str) -> bool:
        """Remove the least recently used value and its series, if it was not used for UNUSED_DAYS. Return whether one was removed."""
        run = self._connection.execute
        query = "SELECT value FROM label WHERE name = ? AND day < ? ORDER BY day LIMIT 1"
        oldest = run(query, (name, self._today - UNUSED_DAYS)).fetchone()
        if oldest is None:
            return False
        run("DELETE FROM label WHERE name = ? AND value = ?", (name, *oldest))
        for metric, labels in ((spec.name, spec.labels) for spec in METRICS if name in spec.labels):
            run("DELETE FROM series WHERE metric = ? AND json_extract(labels, ?) = ?", (metric, f"$[{labels.index(name)}]", *oldest))
        if name == "task":
            run("DELETE FROM series WHERE metric = ? AND json_extract(labels, '$[1]') = ?", (STATUS_SERIES, *oldest))
        return True
