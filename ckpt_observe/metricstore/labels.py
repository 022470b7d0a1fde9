"""Label values from closed or capped sets only: whatever a program calls its tasks, the number of series is bounded.

A capped set is shared by all processes and kept, so a value that has its series keeps it after a restart. When the set is full, a value
that nobody used for a month makes room for a new one: a developer's hundredth experiment is not the last that is told apart.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Any, Final

from ckpt_observe.semconv.metrics import LABEL_VALUES, METRICS, OTHER
from ckpt_observe.semconv.values import ERROR_CLASSES, OPERATIONS, OUTCOMES, PHASES

_CLOSED: Final = {"operation": OPERATIONS, "outcome": OUTCOMES, "error_class": ERROR_CLASSES}
FORGOTTEN_AFTER: Final = 30
"""Days."""
PROGRESS: Final = "progress"
"""Not a metric: the series of how a task's operations stand, by operation and task."""
LONGEST: Final = 128
"""Characters of a value. Longer ones are cut: a name, not a story."""


class Labels:
    """Used within one transaction at a time. After one that failed, make a new one: what it remembers may not have been kept."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._today = 0
        self._known: dict[tuple[str, str], str] = {}
        """Answers of today. Tomorrow each value is noted as in use once more."""
        self._full: set[str] = set()
        """Sets that were found full today, with nothing to forget."""
        self.overflow: Counter[str] = Counter()
        """How often a value became `_other_`, by label; for the caller to take and clear."""

    def begin(self, today: int) -> None:
        """A transaction begins, on this day."""
        if today != self._today:
            self._today = today
            self._known.clear()
            self._full.clear()

    def __call__(self, name: str, raw: Any) -> str:
        if raw is None or raw == "":
            return ""
        value = str(raw)[:LONGEST]
        known = self._known.get((name, value))
        if known is not None:
            return known
        answer = self._answer(name, value)
        if answer != OTHER:
            self._known[name, value] = answer
        return answer

    def _answer(self, name: str, value: str) -> str:
        closed = _CLOSED.get(name)
        if closed is not None:
            return value if value in closed else OTHER
        if (name == "phase" and value in PHASES) or self._admitted(name, value):
            return value
        self.overflow[name] += 1
        return OTHER

    def _admitted(self, name: str, value: str) -> bool:
        run = self._connection.execute
        if run("UPDATE label SET day = ? WHERE name = ? AND value = ?", (self._today, name, value)).rowcount:
            return True
        if name in self._full:
            return False
        if run("SELECT count(*) FROM label WHERE name = ?", (name,)).fetchone()[0] >= LABEL_VALUES and not self._room(name):
            self._full.add(name)
            return False
        run("INSERT INTO label (name, value, day) VALUES (?, ?, ?)", (name, value, self._today))
        return True

    def _room(self, name: str) -> bool:
        """Forget the value that was not used for longest, with its series, if that is long enough ago."""
        run = self._connection.execute
        query = "SELECT value FROM label WHERE name = ? AND day < ? ORDER BY day LIMIT 1"
        oldest = run(query, (name, self._today - FORGOTTEN_AFTER)).fetchone()
        if oldest is None:
            return False
        run("DELETE FROM label WHERE name = ? AND value = ?", (name, *oldest))
        for metric, labels in ((spec.name, spec.labels) for spec in METRICS if name in spec.labels):
            run("DELETE FROM series WHERE metric = ? AND json_extract(labels, ?) = ?", (metric, f"$[{labels.index(name)}]", *oldest))
        if name == "task":
            run("DELETE FROM series WHERE metric = ? AND json_extract(labels, '$[1]') = ?", (PROGRESS, *oldest))
        return True
