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
_LONGEST: Final = 128
"""Characters of a value. Longer ones are cut: a name, not a story."""


class Labels:
    """Used within one transaction at a time. After one that failed, make a new one: what it remembers may not have been kept."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._used: dict[tuple[str, str], int] = {}
        """The day on which a value was last noted as in use."""
        self._full: dict[str, int] = {}
        """The day on which a set was found full, with nothing to forget."""
        self.today = 0
        self.overflow: Counter[str] = Counter()
        """How often a value became `_other_`, by label; for the caller to take and clear."""

    def __call__(self, name: str, raw: Any) -> str:
        if raw is None or raw == "":
            return ""
        value = str(raw)[:_LONGEST]
        if name in _CLOSED:
            return value if value in _CLOSED[name] else OTHER
        if self._used.get((name, value)) == self.today or (name == "phase" and value in PHASES):
            return value
        if self._admitted(name, value):
            self._used[name, value] = self.today
            return value
        self.overflow[name] += 1
        return OTHER

    def _admitted(self, name: str, value: str) -> bool:
        run = self._connection.execute
        if run("UPDATE label SET day = ? WHERE name = ? AND value = ?", (self.today, name, value)).rowcount:
            return True
        if self._full.get(name) == self.today:
            return False
        if run("SELECT count(*) FROM label WHERE name = ?", (name,)).fetchone()[0] >= LABEL_VALUES and not self._room(name):
            self._full[name] = self.today
            return False
        run("INSERT INTO label (name, value, day) VALUES (?, ?, ?)", (name, value, self.today))
        return True

    def _room(self, name: str) -> bool:
        """Forget the value that was not used for longest, with its series, if that is long enough ago."""
        run = self._connection.execute
        query = "SELECT value FROM label WHERE name = ? AND day < ? ORDER BY day LIMIT 1"
        oldest = run(query, (name, self.today - FORGOTTEN_AFTER)).fetchone()
        if oldest is None:
            return False
        run("DELETE FROM label WHERE name = ? AND value = ?", (name, *oldest))
        for metric, labels in ((spec.name, spec.labels) for spec in METRICS if name in spec.labels):
            run("DELETE FROM series WHERE metric = ? AND json_extract(labels, ?) = ?", (metric, f"$[{labels.index(name)}]", *oldest))
        if name == "task":
            run("DELETE FROM series WHERE metric = ? AND json_extract(labels, '$[1]') = ?", (PROGRESS, *oldest))
        return True
