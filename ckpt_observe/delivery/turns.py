"""The journals of dead processes that wait for their turn, because only a dozen are held at a time.

A waiting journal takes no descriptor. Its pages are recovered, so nothing is lost if its turn comes late or in another process. The rule:
an exporter that could deliver, but has nothing left to do, gets the next journal that it may need. So an exporter that is down or slow
does not keep the records of hundreds of dead processes from the others.
"""

from __future__ import annotations

import os
from collections.abc import Collection


class Turns:
    """A queue of journal directories, first come, first served.

    It is used under the lock of `Adoption`. With a lock of its own, a signal handler that searches for the dead could wait for a
    thread that waits for the thread that the handler interrupted.
    """

    def __init__(self) -> None:
        self._exporters: dict[str, frozenset[str] | None] = {}
        """For each directory, the exporters of ours that need it; None if that is not known."""

    def __len__(self) -> int:
        return len(self._exporters)

    def __contains__(self, directory: str) -> bool:
        return directory in self._exporters

    def add(self, directory: str, exporters: frozenset[str] | None = None) -> None:
        """Append a journal. `exporters` are those of ours that have not received all of it; None if that is not known."""
        self._exporters[directory] = exporters

    def has_next(self, idle: Collection[str]) -> bool:
        """Return whether a journal waits that one of the idle exporters may need."""
        return self._next(idle) is not None

    def take(self, idle: Collection[str]) -> str | None:
        """Remove and return the next journal that one of the idle exporters may need. None if there is no such journal."""
        directory = self._next(idle)
        if directory is not None:
            del self._exporters[directory]
        return directory

    def forget_removed(self) -> None:
        """Forget journals that no longer exist: another process has delivered them."""
        for directory in [each for each in self._exporters if not os.path.exists(each)]:
            del self._exporters[directory]

    def _next(self, idle: Collection[str]) -> str | None:
        if not idle:
            return None
        for directory, exporters in self._exporters.items():
            if exporters is None or not exporters.isdisjoint(idle):
                return directory
        return None
