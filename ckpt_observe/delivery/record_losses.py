"""Counts records of one journal that are damaged or gone: each once, although every exporter reads them, and processes may take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping

from ckpt_observe.journal.spool import Cursor


class RecordLosses:
    """Adds to `counts`. `cursors` are the positions of the exporters; what lies before one of them was counted, perhaps by another process.

    `read` returns the end of the batch at a position, and the damaged (`corrupt`) and not understood (`unknown`) records in it.
    """

    def __init__(self, counts: Counter[str], cursors: Mapping[str, Cursor], read: Callable[[Cursor], tuple[Cursor, Counter[str]]]) -> None:
        self._counts, self._read = counts, read
        self._counted = max(cursors.values(), default=Cursor())
        """Damage before this position is counted."""
        self._missing: dict[str, set[Cursor]] = {}
        """Positions of records that somebody removed before the exporter received them."""

    def pass_batch(self, exporter: str, before: Cursor, after: Cursor, damage: Counter[str]) -> None:
        """Record that an exporter is done with a batch that contained this damage."""
        if not damage or before >= self._counted:
            self._counts.update(damage)
            self._counted = max(self._counted, after)
        else:  # another exporter has counted the first part, or all of it
            self.count_until(after)
        if missing := self._missing.get(exporter):
            # Those in the segment in which the batch ends were read before somebody removed them.
            self._set_missing(exporter, {each for each in missing if not (before <= each < after and each.segment == after.segment)})

    def count_until(self, position: Cursor, *kinds: str) -> None:
        """Count the damage of these kinds (by default all) up to a position."""
        while self._counted < position:
            end, damage = self._read(self._counted)
            self._counts.update({kind: count for kind, count in damage.items() if not kinds or kind in kinds})
            if end <= self._counted:
                return
            self._counted = end

    def add_missing(self, positions: Collection[Cursor], cursors: Mapping[str, Cursor]) -> None:
        """Count the records at these positions, which somebody removed, if an exporter has not received them."""
        for exporter, cursor in cursors.items():
            self._set_missing(exporter, self._missing.get(exporter, set()) | {each for each in positions if each >= cursor})

    def _set_missing(self, exporter: str, positions: set[Cursor]) -> None:
        before = set().union(*self._missing.values())
        self._missing[exporter] = positions
        self._counts["corrupt"] += len(set().union(*self._missing.values())) - len(before)
