"""What this process records, from its pages to its spool: the one part of delivery that is always done in the process itself.

It knows no exporter and opens nothing but files of the journal: ten looks a second at an empty queue cost next to nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from ckpt_observe.delivery.once import Once
from ckpt_observe.journal.directory import Counts
from ckpt_observe.journal.journal import Journal
from ckpt_observe.semconv import metrics

TICK: Final = 0.1
"""Seconds between two looks at the pages; 768 ended operations may wait in between."""
SYNC_EVERY: Final = 1.0
"""Seconds: what is recorded survives the machine after at most this long."""


class Collector:
    """Of one journal. Used by one thread, and by whoever flushes."""

    def __init__(self, journal: Journal, bound: Callable[[], None], annotate: Callable[[bytes], bytes] | None = None) -> None:
        self.journal, self._bound, self._annotate = journal, bound, annotate
        """`bound` keeps the spool within its limit; called when something came in."""
        self._moving = threading.Lock()
        """Held while records move to the spool: `flush` must not look in between."""
        self._once = Once()

    def collect(self) -> bool:
        """Whether anything was moved to the spool."""
        pool = self.journal.pool
        try:
            with self._moving:
                pool.write_heartbeat(time.time_ns())
                pool.make_room()
                moved = pool.collect(self._annotate)
                if moved:
                    self._bound()
            return bool(moved)
        except OSError as error:  # a full or vanished disk: the pages hold what they can, the rest is counted
            self._once.say("spool", f"{self.journal.directory}: {error.strerror}; records wait in memory")
            return False

    def sync(self) -> None:
        """What was collected, and what is in flight, survives the machine."""
        try:
            self.journal.sync()
        except OSError as error:
            self._once.say("sync", f"{self.journal.directory}: {error.strerror}; records would not survive the machine")

    def health(self) -> Counts:
        """Counters of the pages, by metric and labels."""
        counts = self.journal.pool.counts
        found: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for spec, kinds in ((metrics.RECORDS, metrics.RECORD_EVENTS), (metrics.DROPPED_RECORDS, metrics.DROP_REASONS)):
            for kind in kinds:
                found[spec.name, (kind,)] += counts.get(kind, 0)
        return dict(found)
