"""Label values from closed or capped sets only: whatever a program calls its tasks, the number of series is bounded.

A capped set is shared by all processes and kept, so a value that has its series keeps it after a restart.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import Any, Final

from ckpt_observe.semconv.metrics import LABEL_VALUES, OTHER
from ckpt_observe.semconv.values import ERROR_CLASSES, OPERATIONS, OUTCOMES, PHASES

_CLOSED: Final = {"operation": OPERATIONS, "outcome": OUTCOMES, "error_class": ERROR_CLASSES}
_LONGEST: Final = 128
"""Characters of a value. Longer ones are cut: a name, not a story."""


class Labels:
    """Used within one transaction at a time. After one that failed, make a new one: what it remembers may not have been kept."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._known: dict[str, set[str]] = {"phase": set(PHASES)}
        self._full: set[str] = set()
        self.overflow: Counter[str] = Counter()
        """How often a value became `_other_`, by label; for the caller to take and clear."""

    def __call__(self, name: str, raw: Any) -> str:
        if raw is None or raw == "":
            return ""
        value = str(raw)[:_LONGEST]
        if name in _CLOSED:
            return value if value in _CLOSED[name] else OTHER
        known = self._known.setdefault(name, set())
        if value in known:
            return value
        if self._admitted(name, value):
            known.add(value)
            return value
        self.overflow[name] += 1
        return OTHER

    def _admitted(self, name: str, value: str) -> bool:
        run = self._connection.execute
        if run("SELECT 1 FROM label WHERE name = ? AND value = ?", (name, value)).fetchone():
            return True
        if name in self._full or run("SELECT count(*) FROM label WHERE name = ?", (name,)).fetchone()[0] >= LABEL_VALUES:
            self._full.add(name)
            return False
        run("INSERT INTO label (name, value) VALUES (?, ?)", (name, value))
        return True
