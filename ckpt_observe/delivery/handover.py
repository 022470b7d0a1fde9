"""Stands where the delivery would in a process whose records another one delivers: its companion, or the daemon of the host.

One thread moves records from the pages to the spool, and looks now and then whether somebody delivers it. No exporter, no socket, no
database is in this process. How far the other one is stands in its cursors, beside the spool.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final, Protocol

from ckpt_observe.delivery import outbox
from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.once import Once
from ckpt_observe.delivery.outbox import SPOOL_LIMIT, Outbox
from ckpt_observe.delivery.page_collector import SYNC_EVERY, TICK, Collector
from ckpt_observe.journal import spool
from ckpt_observe.journal.directory import Counts, save_counts
from ckpt_observe.journal.journal import Journal

STUCK: Final = SPOOL_LIMIT + (SPOOL_LIMIT >> 2)
"""Bytes at which the owner drops the oldest records itself, though somebody is there whose task it is: disk is bounded whoever hangs."""


class Deliverer(Protocol):
    """Whoever is to deliver for us."""

    def look(self) -> bool:
        """Called ten times a second: see to it that somebody does, or say that nobody does. False: nobody ever will."""

    def close(self, timeout: float, /) -> None: ...


class Handover:
    """Has the same face as a `Delivery`. `fall_back` is called when nobody can delivery for us: whether somebody else took our place."""

    def __init__(
        self, journal: Journal, deliverer: Deliverer, disk_limit: DiskLimit, health: Callable[[], Counts], fall_back: Callable[[], bool]
    ) -> None:
        self._journal, self._deliverer, self._disk_limit, self._health, self._fall_back = journal, deliverer, disk_limit, health, fall_back
        self._collector = Collector(journal, self._bound)
        self._own = Outbox(journal.directory, {}, ())
        """Only to count what we had to drop ourselves."""
        self._stopping = threading.Event()
        self._once = Once()
        self._thread = threading.Thread(target=self._collect_forever, name="ckpt-observe-collect", daemon=True)

    def start(self) -> None:
        self._deliverer.look()  # before the first operation begins: from then on its death must be seen by somebody
        self._thread.start()

    def flush(self, timeout: float = 5.0) -> bool:
        """Bring everything recorded so far to the spool, and wait until whoever delivers it has delivered it; whether that was in time."""
        deadline = time.monotonic() + timeout
        while self._collector.collect():
            pass
        while self._pending():
            if time.monotonic() >= deadline or self._stopping.wait(min(TICK / 4, timeout)):
                return False
        return True

    def close(self, timeout: float = 2.0) -> bool:
        """The same, and stop. The journal is left to whoever delivers it, who removes it when all is delivered."""
        if not self._stopping.is_set():
            done = self.flush(timeout)
            self._stopping.set()
            self._thread.join(timeout + TICK)
            self._deliverer.close(timeout)
            self._collector.collect()
            self._chores()
            self._journal.release()
            return done
        return not self._pending()

    def health(self) -> Counts:
        """Counters of the pages, the spool and what was dropped of others', by metric and labels."""
        found = Counter(self._health())
        for part in (self._collector, self._own, self._disk_limit):
            found.update(part.health())
        return dict(found)

    def _collect_forever(self) -> None:
        did = 0.0
        looked = False
        while True:
            now = time.monotonic()
            try:
                self._collector.collect()
                if not looked:
                    looked = True
                    self._disk_limit.recover(os.path.dirname(self._journal.about.pages))
                    self._disk_limit.keep_within_limit()
                if now - did >= SYNC_EVERY:
                    did = now
                    self._chores()
                if not self._deliverer.look() and self._fall_back():
                    return
            except Exception as error:  # whatever it is, the next round may go better; a thread that ended would lose everything
                self._once.say(type(error).__name__, f"a fault of its own while collecting: {error!r}")
            if self._stopping.wait(TICK):
                return

    def _chores(self) -> None:
        self._collector.sync()
        try:
            save_counts(self._journal.directory, self.health())
        except OSError:
            pass  # `sync` says so; the next round brings them

    def _exporters(self) -> Collection[str]:
        """Those that we asked for, else those that a daemon has; as long as there was none, one that had nothing."""
        return self._journal.about.exporters or outbox.known(self._journal.directory) or ("daemon",)

    def _pending(self) -> bool:
        """Whether an exporter of whoever delivers us has not had something."""
        try:
            return self._journal.pool.has_uncollected() or Outbox(self._journal.directory, {}, self._exporters()).pending()
        except FileNotFoundError:  # all delivered and removed; or removed by hand
            return False

    def _bound(self) -> None:
        """Whoever delivers keeps the spool within its limit, for it knows what it has delivered; while nobody does, we do."""
        size = spool.size(self._journal.directory)
        if size > SPOOL_LIMIT and (size > STUCK or not self._journal.has_deliverer()):
            dropping = Outbox(self._journal.directory, {}, self._exporters())
            dropping.keep_within_limit()
            self._own.counts.update(dropping.counts)
