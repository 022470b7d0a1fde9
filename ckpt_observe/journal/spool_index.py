"""Where the records of a spool end. The owner keeps it in memory, to know how many are lost if somebody truncates or removes a segment."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable

from ckpt_observe.support.host_exceptions import ignore_errors


class SpoolIndex:
    """The records of the segments that exist. Takes 8 bytes for each. `path` returns the path of a segment."""

    def __init__(self, path: Callable[[int], str]) -> None:
        self._path = path
        self._ends: dict[int, array[int]] = {}

    def add(self, segment: int, sizes: Iterable[int]) -> None:
        """Record that lines of these sizes were appended to a segment."""
        ends = self._ends.setdefault(segment, array("Q"))
        end = ends[-1] if ends else 0
        for size in sizes:
            end += size
            ends.append(end)

    def take_missing(self) -> list[tuple[int, int]]:
        """Return segment and offset of the records that are gone since the last call, by hand or because they were delivered.

        The rest of a line that was cut in the middle is removed, so that readers do not count it, too.
        """
        missing: list[tuple[int, int]] = []
        for segment in list(self._ends):
            with ignore_errors(OSError):  # cannot be read now
                missing += self._take_missing(segment)
        return missing

    def _take_missing(self, segment: int) -> list[tuple[int, int]]:
        path, ends = self._path(segment), self._ends[segment]
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            size = 0
            del self._ends[segment]
        count = bisect_right(ends, size)
        start = ends[count - 1] if count else 0
        if start < size < ends[-1]:
            os.truncate(path, start)
        missing = [(segment, offset) for offset in (start, *ends[count:-1])] if count < len(ends) else []
        del ends[count:]
        return missing
