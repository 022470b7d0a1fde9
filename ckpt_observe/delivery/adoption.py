"""Adopts the journals of other processes: those of dead processes, and in a companion or daemon also those of live ones.

The `drain.lock` of a journal makes sure that exactly one process delivers it. While its owner lives, only its spool is read. When the
owner dies, its pages are recovered, and the journal is removed once everything is delivered. A held journal takes two descriptors of the
host program, so only a dozen journals of dead processes are held at a time; the rest take turns (`turns`).
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, TypeAlias

from ckpt_observe.delivery.annotation import Annotator
from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.delivery.set_aside import LONGEST_RETRY
from ckpt_observe.delivery.turns import Turns
from ckpt_observe.errors import DamagedJournalError, JournalError
from ckpt_observe.journal import claims, recovery
from ckpt_observe.journal.claims import Claim
from ckpt_observe.journal.directory import JOURNALS, UNFINISHED, About, Counts, boot_id, read_about, take_counts
from ckpt_observe.support.files import remove_tree
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import WarningLog

GRACE_PERIOD: Final = 60.0
"""Seconds after its start before a companion or daemon enforces the disk limit. Until then it only delivers, however much there is."""
MAX_DEAD: Final = 12
"""Journals of dead processes that are held at a time. Each takes two descriptors."""
LiveExporters: TypeAlias = Callable[[About], Collection[str] | None]
"""Returns the exporters for a journal whose owner may be alive. None if its owner or another process delivers it."""


class Adoption:
    """The journals of other processes that this one delivers. Used by one thread and by `flush()`; `outboxes()` by any thread.

    Args:
        exporters: Identities of our exporters.
        transient: Those that get the records of every journal, but are not named in any (see `Exporter.durable`).
        own_directory: The journal of this process, or empty.
        live_exporters: None to adopt only journals of dead processes, as a process does that delivers itself.
        paused: Returns those of our exporters that wait before they try again.
        must_wait: Returns whether an exporter must wait before it gets the next batch of a journal (see `send_marks`).
        small_batches: Those of our exporters that get fewer records at a time.

    """

    def __init__(
        self,
        state: Path,
        exporters: Collection[str],
        transient: Collection[str],
        own_directory: str,
        live_exporters: LiveExporters | None,
        annotator: Annotator,
        disk_limit: DiskLimit,
        *,
        paused: Callable[[], Collection[str]] = tuple,
        must_wait: Callable[[Outbox, str], bool] = lambda _outbox, _exporter: False,
        small_batches: Collection[str] = (),
        genai_events: bool = False,
    ) -> None:
        self._paused, self._must_wait, self._turns = paused, must_wait, Turns()
        self._root, self._own_directory, self._disk_limit = state / JOURNALS, own_directory, disk_limit
        self._exporters, self._transient, self._live_exporters = frozenset(exporters), transient, live_exporters
        self._annotator, self._genai_events, self._small_batches = annotator, genai_events, small_batches
        self._journals: dict[str, tuple[Outbox, Claim]] = {}
        self._lock = threading.RLock()  # re-entrant: a signal handler that finds no free page collects, and so searches for the dead
        """Held while a journal is adopted, recovered or released. Do not wait for an outbox in use meanwhile: its thread may be
        waiting for this lock, to search for dead processes."""
        self._ignored: set[str] = set()
        """Directories that we do not adopt (again): damaged, of a newer version, or with nothing left for our exporters."""
        self._retry_at: dict[str, float] = {}
        """When to adopt journals again in which spans are set aside."""
        self._about_cache: dict[str, About] = {}
        """For journals that we have not adopted. `about.json` never changes, and names are never reused."""
        self._live: set[str] = set()
        """Adopted journals whose owner is alive."""
        self._limit_check_due = True
        """Whether ended processes may have left more than the disk limit since the last check."""
        self._grace_until = 0.0 if live_exporters is None else time.monotonic() + GRACE_PERIOD
        self._warnings = WarningLog()
        self.interrupted = 0
        """Number of interrupted operations of dead processes that were reported."""
        self._totals: Counter[tuple[str, tuple[str, ...]]] = Counter()
        """Counters of owners and of outboxes that were released."""
        self._totals_lock = threading.Lock()

    def outboxes(self) -> list[Outbox]:
        """Return the outboxes of all adopted journals."""
        return [outbox for outbox, _ in list(self._journals.values())]

    def health(self) -> Counts:
        """Return the counters, by metric and labels. Dropped records that arrive after all are subtracted again."""
        with self._totals_lock:
            totals = self._totals.copy()
            totals.update(self._disk_limit.health())
            for outbox in self.outboxes():
                totals.update(outbox.health())
        return dict(totals)

    def live_count(self) -> int:
        """Return how many other live processes we deliver for."""
        return len(self._live)

    def journal_count(self) -> int:
        """Return how many journals the state directory has."""
        try:
            return len(os.listdir(self._root))
        except OSError as error:
            raise_host_exception(error)
            return 0

    def waiting(self) -> bool:
        """Return whether journals of dead processes wait for their turn."""
        with self._lock:  # a journal whose turn has come is in `outboxes()` when this returns
            return bool(self._turns)

    def scan(self) -> bool:
        """Adopt journals, and recover those whose owner died. Return whether there may be something new for an exporter."""
        try:
            directories = sorted(entry.path for entry in os.scandir(self._root))
        except OSError as error:
            raise_host_exception(error)
            return False
        claims.remove_unfinished(path for path in directories if path.endswith(UNFINISHED))
        for directory in [each for each, due in list(self._retry_at.items()) if time.monotonic() >= due]:
            self._ignored.discard(directory)
            self._retry_at.pop(directory, None)
        has_news = False
        for directory in directories:
            if directory == self._own_directory or directory in self._ignored or directory.endswith(UNFINISHED):
                continue
            if directory not in self._turns:
                has_news |= self._check(directory)
        with self._lock:
            self._ignored.intersection_update(directories)
            self._turns.forget_removed()  # not `directories`: another thread may have added a journal that is newer than the list
            for directory in self._about_cache.keys() - directories:
                del self._about_cache[directory]
        return has_news

    def _check(self, directory: str) -> bool:
        """Adopt a journal, or check whether its owner died. Return whether there may be something new for an exporter."""
        try:
            with self._lock:
                return self._check_owner(directory) if directory in self._journals else self._adopt(directory)
        except DamagedJournalError as error:
            self._ignored.add(directory)
            place = claims.quarantine(directory) or directory
            self._warnings.warn_once(directory, "%s in %s, but not delivered.", error, place)
        except JournalError as error:
            if os.path.exists(directory):  # written by a newer version: do not touch it
                self._ignored.add(directory)
                self._warnings.warn_once(directory, "%s", error)
        except OSError as error:  # a full disk may have room later
            raise_host_exception(error)
            self._warn_retry(directory, error)
        return False

    def _warn_retry(self, directory: str, error: Exception) -> None:
        if os.path.exists(directory):
            self._warnings.warn_once("retry", "Cannot take over the journal %s: %s. Its records are kept. Trying again.", directory, error)

    def take_turns(self) -> bool:
        """Adopt waiting journals as places become free. Return whether there is something new for an exporter."""
        if not self._has_next(self._exporters - frozenset(self._paused())):
            return False
        self._release_finished()
        idle = self._idle_exporters()
        if self._dead_count() >= MAX_DEAD and self._has_next(idle):
            self._postpone(MAX_DEAD // 2)
        has_news = False
        while self._dead_count() < MAX_DEAD:
            with self._lock:
                directory = self._turns.take(idle)
                if directory is None:
                    break
                has_news |= self._check(directory)
        return has_news

    def _has_next(self, exporters: Collection[str]) -> bool:
        with self._lock:
            return self._turns.has_next(exporters)

    def _dead_count(self) -> int:
        return len(self._journals) - len(self._live)

    def _idle_exporters(self) -> frozenset[str]:
        """Return our exporters that could deliver now, but have received everything of the adopted journals that they may get now."""
        outboxes = self.outboxes()
        ready = self._exporters - frozenset(self._paused())
        busy = (name for outbox in outboxes for name in ready if outbox.has_more(name) and not self._must_wait(outbox, name))
        return ready.difference(busy)

    def _postpone(self, count: int) -> None:
        """Release journals that only busy or paused exporters need, so that the idle ones get others.

        The released journals wait for their next turn.
        """
        for directory, (outbox, _) in list(self._journals.items()):
            exporters = frozenset(name for name in self._exporters if outbox.has_more(name))
            with self._lock:
                if count and exporters and directory not in self._live and outbox.retire():
                    self._turns.add(directory, exporters)
                    self._drop(directory)
                    count -= 1

    def _adopt(self, directory: str) -> bool:
        exporters = self._live_exporters(self._about(directory)) if self._live_exporters else None
        claim = claims.claim_dead(directory) if exporters is None else claims.claim_delivery(directory)
        if claim is None:
            return False
        try:
            if claim.about.delivery == "daemon" and exporters is None:  # meant for exporters of the daemon, which we do not know
                self._ignored.add(directory)
                claim.release()
                return False
            if claim.owner_is_dead():
                self._recover(claim)
            else:
                self._live.add(directory)
        except BaseException:
            claim.release()
            raise
        self._about_cache.pop(directory, None)
        if directory not in self._live and self._dead_count() >= MAX_DEAD:
            claim.release()
            self._turns.add(directory)
            return False
        outbox = Outbox(
            directory,
            claim.about.resource,
            {*(claim.about.exporters if exporters is None else exporters), *self._transient},
            self._annotator.annotate if claim.about.delivery != "in-process" else None,
            genai_events=self._genai_events,
            is_restarted=claim.about.boot != boot_id(),
            small_batches=self._small_batches,
            attributes=claim.about.attributes,
        )
        if directory in self._live:
            outbox.save_cursors()  # tells the owner which exporters to wait for
        self._journals[directory] = outbox, claim
        return True

    def _about(self, directory: str) -> About:
        if directory not in self._about_cache:
            self._about_cache[directory] = read_about(directory)
        return self._about_cache[directory]

    def _check_owner(self, directory: str) -> bool:
        """Recover an adopted journal if its owner died since the last check. Return whether the owner died."""
        outbox, claim = self._journals[directory]
        if directory not in self._live or not claim.owner_is_dead():
            return False
        self._recover(claim)
        self._live.discard(directory)
        if self._dead_count() > MAX_DEAD and outbox.retire():
            self._turns.add(directory)
            self._collect_counts(directory)
            self._drop(directory)
        return True

    def _recover(self, claim: Claim) -> None:
        self.interrupted += recovery.recover(claim, self._annotator.annotate_dead)
        self._limit_check_due = True

    def maintain(self) -> None:
        """Enforce the disk limits, collect the counters of live owners, and release journals that we can do nothing more for."""
        if self._limit_check_due and time.monotonic() >= self._grace_until:
            self._limit_check_due = False
            dead = self._journals.keys() - self._live
            self._disk_limit.enforce({directory: self._journals[directory][0] for directory in dead})
        for directory, (outbox, _) in list(self._journals.items()):
            if not os.path.exists(directory):  # removed by hand
                self._release(directory, delivered=True)
            elif directory in self._live:
                self._enforce_spool_limit(outbox)
                self._collect_counts(directory)
        self._release_finished()

    def _release_finished(self) -> None:
        """Release the journals of dead processes that we can do nothing more for."""
        for directory, (outbox, _) in list(self._journals.items()):
            if directory not in self._live and not self._has_batch(outbox):
                self._release(directory, delivered=not outbox.pending())

    def _has_batch(self, outbox: Outbox) -> bool:
        """Return whether a journal has something for one of our exporters, or cannot be read now."""
        exporters = [name for name in self._exporters if outbox.delivers_to(name)]
        if any(outbox.set_aside.due(name) for name in exporters if name not in self._paused()):
            return True
        try:
            return any(outbox.has_batch(name) for name in exporters)
        except OSError as error:
            raise_host_exception(error)
            return True

    def _enforce_spool_limit(self, outbox: Outbox) -> None:
        try:
            outbox.enforce_spool_limit()
        except OSError as error:  # the other journals do not wait for this one
            raise_host_exception(error)
            self._warnings.warn_once(
                outbox.directory, "Cannot drop the oldest records of %s: %s. It may exceed its disk limit.", outbox.directory, error
            )

    def release(self) -> None:
        """Release all journals. The next process delivers what is not delivered."""
        for directory, (outbox, _) in list(self._journals.items()):
            self._release(directory, delivered=directory not in self._live and not outbox.pending())

    def _release(self, directory: str, *, delivered: bool) -> None:
        """Release one journal. Remove it if it is `delivered`: to all its exporters, not only to ours."""
        with self._lock:
            if directory not in self._journals:  # another thread released it
                return
            self._collect_counts(directory)
            if delivered:
                remove_tree(directory)
            else:
                self._ignored.add(directory)
                if self._journals[directory][0].set_aside.count():
                    self._retry_at[directory] = time.monotonic() + LONGEST_RETRY
            self._drop(directory)

    def _drop(self, directory: str) -> None:
        """Release the locks of a journal and keep its counters."""
        outbox, claim = self._journals[directory]
        claim.release()
        self._live.discard(directory)
        with self._totals_lock:
            self._journals.pop(directory, None)
            self._totals.update(outbox.health())

    def _collect_counts(self, directory: str) -> None:
        increase = take_counts(directory)
        with self._totals_lock:
            self._totals.update(increase)
