"""Takes the place of `Delivery` in a host program whose records another process delivers: a companion or the daemon.

One thread moves records from the pages to the spool, and checks now and then whether somebody delivers them. This process has no
exporter, no socket and no database. The progress of the other process is in its cursors, beside the spool.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, Protocol

from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.outbox import SPOOL_LIMIT, Outbox, exporters_with_cursor
from ckpt_observe.delivery.page_collector import POLL_INTERVAL, SYNC_INTERVAL, PageCollector
from ckpt_observe.journal import spool
from ckpt_observe.journal.directory import Counts, save_counts
from ckpt_observe.journal.journal import Journal
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import WarningLog

HARD_SPOOL_LIMIT: Final = SPOOL_LIMIT + (SPOOL_LIMIT >> 2)
"""Bytes at which the host program drops the oldest records itself, even if another process should: that process may hang."""


class Deliverer(Protocol):
    """The process that delivers for us, as seen from the host program."""

    def check(self) -> bool:
        """Start the process, or warn, if it is missing. Called ten times a second. Return False if nobody will ever deliver."""

    def close(self, timeout: float, /) -> None: ...


class Handover:
    """Collects the pages of this process. Has the methods of `Delivery` that `observe()` needs.

    Args:
        extra_counts: Returns further counters of this process, by metric and labels.
        fall_back: Called if nobody can deliver for us. Returns whether something else took our place, which ends our thread.

    """

    def __init__(
        self,
        journal: Journal,
        deliverer: Deliverer,
        disk_limit: DiskLimit,
        extra_counts: Callable[[], Counts],
        fall_back: Callable[[], bool],
    ) -> None:
        self._journal, self._deliverer, self._disk_limit = journal, deliverer, disk_limit
        self._extra_counts, self._fall_back = extra_counts, fall_back
        self._collector = PageCollector(journal, self._enforce_disk_limit)
        self._drops = Outbox(journal.directory, {}, ())
        """Only counts what we had to drop ourselves."""
        self._stopping = threading.Event()
        self._warnings = WarningLog()
        self._thread = threading.Thread(target=self._collect_forever, name="ckpt-observe-collect", daemon=True)

    def start(self) -> None:
        """Start the thread, unless it runs. RuntimeError if the system refuses it."""
        self._deliverer.check()  # before the first operation starts: from then on somebody must notice our death
        if self._thread.ident is None:
            self._thread.start()

    def flush(self, timeout: float = 5.0) -> bool:
        """Move everything recorded so far to the spool, and wait until it is delivered. Return False on timeout."""
        deadline = time.monotonic() + timeout
        self._collector.collect_all(deadline)
        while self._pending():
            if time.monotonic() >= deadline or self._stopping.wait(min(POLL_INTERVAL / 4, timeout)):
                return False
        return True

    def close(self, timeout: float = 2.0) -> bool:
        """Flush and stop. Return whether everything was delivered. The process that delivers the journal removes it after that."""
        if self._stopping.is_set():
            return not self._pending()
        is_delivered = self.flush(timeout)
        self._stopping.set()
        self._journal.pool.wakeup.ring()
        if self._thread.ident is not None:
            self._thread.join(timeout + POLL_INTERVAL)
        self._deliverer.close(timeout)
        self._collector.collect_all(math.inf)
        self._sync()
        self._journal.release()
        return is_delivered

    def health(self) -> Counts:
        """Return the counters of this process, by metric and labels, including drops from journals of ended processes."""
        totals = Counter(self._extra_counts())
        for part in (self._collector, self._drops, self._disk_limit):
            totals.update(part.health())
        return dict(totals)

    def _collect_forever(self) -> None:
        last_sync = 0.0
        is_first_pass = True
        while True:
            now = time.monotonic()
            try:
                self._collector.collect()
                if is_first_pass:
                    is_first_pass = False
                    self._collector.remove_orphans()
                    self._disk_limit.recover_pages(os.path.dirname(self._journal.about.pages))
                    self._disk_limit.enforce()
                if now - last_sync >= SYNC_INTERVAL:
                    last_sync = now
                    self._sync()
                if not self._deliverer.check() and self._fall_back():
                    return
            except Exception as error:  # the next pass may succeed; a thread that ended would lose everything
                raise_host_exception(error)
                self._warnings.warn_once(type(error).__name__, "Internal error while collecting records: %r", error)
            self._journal.pool.wakeup.wait(POLL_INTERVAL)
            if self._stopping.is_set():
                return

    def _sync(self) -> None:
        self._collector.sync()
        missing = self._journal.spool.take_missing()
        if missing and os.path.exists(self._journal.directory):  # otherwise nobody knows what was delivered
            outbox = Outbox(self._journal.directory, {}, self._exporters())
            outbox.count_missing(missing)
            self._drops.counts.update(outbox.counts)
        try:
            save_counts(self._journal.directory, self.health())
        except OSError as error:
            raise_host_exception(error)  # any other: `sync` has warned about it, and the next pass tries again

    def _exporters(self) -> Collection[str]:
        """Return our exporters, or those of the daemon. Before a daemon came, return a placeholder that has received nothing."""
        return self._journal.about.exporters or exporters_with_cursor(self._journal.directory) or ("daemon",)

    def _pending(self) -> bool:
        """Return whether an exporter of the delivering process has not received something."""
        try:
            return self._journal.pool.has_uncollected() or Outbox(self._journal.directory, {}, self._exporters()).pending()
        except FileNotFoundError:  # removed: everything was delivered, or somebody removed it by hand
            return False

    def _enforce_disk_limit(self) -> None:
        """Drop the oldest records if nobody else does. The delivering process normally does, because it knows what it has delivered."""
        size = spool.size(self._journal.directory)
        if size > SPOOL_LIMIT and (size > HARD_SPOOL_LIMIT or not self._journal.has_deliverer()):
            outbox = Outbox(self._journal.directory, {}, self._exporters())
            outbox.enforce_spool_limit()
            self._drops.counts.update(outbox.counts)
