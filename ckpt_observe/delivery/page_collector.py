"""Moves finished operations from shared-memory pages to the spool on disk.

This is the only part of delivery that always runs in the host program. It never touches an exporter or the network. Polling an empty
queue ten times a second costs about 0.2 % of a core.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from ckpt_observe.journal.directory import Counts
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.orphans import remove_orphans
from ckpt_observe.journal.pool import COLLECT_BATCH, Annotate
from ckpt_observe.semconv import metrics
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception
from ckpt_observe.support.logs import WarningLog

POLL_INTERVAL: Final = 0.1
"""Seconds between two passes, unless half of the pages are in use before that."""
SYNC_INTERVAL: Final = 1.0
"""Seconds between two syncs: what is recorded survives a power failure after about this long."""


class PageCollector:
    """Collects the pages of one journal. Called from its own thread and from `flush()`.

    `enforce_disk_limit` is called when a segment of the spool is complete: it takes many system calls, each of which waits for the GIL.
    `annotate` adds facts to records before they are written.
    """

    def __init__(self, journal: Journal, enforce_disk_limit: Callable[[], None], annotate: Annotate | None = None) -> None:
        self.journal, self._enforce_disk_limit, self._annotate = journal, enforce_disk_limit, annotate
        self._collect_lock = threading.RLock()  # re-entrant: a signal handler may flush
        """Held during a pass, so that `flush()` never sees a half-finished one."""
        self._batch = COLLECT_BATCH
        """Records of a pass. One after a failure, until the disk accepts it: 4,096 ten times a second would use a third of a core."""
        self._limited_segment = journal.spool.segment
        """The segment at whose start the disk limit was enforced last."""
        self._warnings = WarningLog()

    def collect_all(self, deadline: float) -> None:
        """Move the operations to the spool that have finished before this call, or as many as possible until the deadline.

        Not those that finish meanwhile: threads of the host program may save faster than we collect.
        """
        remaining = self.journal.pool.count_finished()
        with self._collect_lock:  # a pass that is under way has taken operations from the queue, and may not have written them yet
            pass
        while remaining > 0 and (moved := self.collect()) and time.monotonic() < deadline:
            remaining -= moved

    def collect(self) -> int:
        """Move a batch of finished operations to the spool. Return how many."""
        pool = self.journal.pool
        try:
            with self._collect_lock:
                pool.write_heartbeat(time.time_ns())
                pool.make_room()
                pool.recover_lost_pages()
                moved = pool.collect(self._annotate, limit=self._batch)
                self._batch = COLLECT_BATCH
                segment = self.journal.spool.segment
                if segment != self._limited_segment:
                    self._enforce_disk_limit()
                    self._limited_segment = segment
            return moved
        except OSError as error:  # disk full or gone: records stay in memory while there is room; drops are counted
            raise_host_exception(error)
            self._batch = 1
            self._warnings.warn_once(
                "spool", "Cannot write %s: %s. Records are kept in memory while there is room.", self.journal.directory, error.strerror
            )
            return 0

    def remove_orphans(self) -> None:
        """Remove pages of dead processes whose journal was deleted. Called once, in the first pass."""
        with ignore_errors(OSError):  # the directory was removed by hand
            remove_orphans(os.path.dirname(self.journal.about.pages))

    def sync(self) -> None:
        """Flush the spool and a copy of running operations to disk."""
        try:
            self.journal.sync()
        except OSError as error:
            raise_host_exception(error)
            message = "Cannot sync %s: %s. Records would not survive a power failure."
            self._warnings.warn_once("sync", message, self.journal.directory, error.strerror)

    def health(self) -> Counts:
        """Return the counters of the pages, by metric and labels."""
        counts = self.journal.pool.counts
        totals: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for metric, label_values in ((metrics.RECORDS, metrics.RECORD_EVENTS), (metrics.DROPPED_RECORDS, metrics.DROP_REASONS)):
            for value in label_values:
                totals[metric.name, (value,)] += counts.get(value, 0)
        return dict(totals)
