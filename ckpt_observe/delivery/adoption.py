"""The journals of other processes that this one delivers: dead ones, and in a companion or daemon also live ones that leave it to them.

Each is held by its `drain.lock`, so exactly one process delivers it. A live one is read from its spool only; when its owner dies, its
pages are recovered, and it is a dead one like any other.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, TypeAlias

from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.lost_steps import LostSteps
from ckpt_observe.delivery.once import Once
from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.errors import JournalError
from ckpt_observe.journal import claims, recovery
from ckpt_observe.journal.claims import Claim
from ckpt_observe.journal.directory import JOURNALS, UNFINISHED, About, Counts, read_about, take_counts
from ckpt_observe.support.files import remove_tree

PATIENCE: Final = 60.0
"""Seconds for which a companion or daemon that comes only delivers, however much there is: then what is too much is dropped."""
Attends: TypeAlias = Callable[[About], Collection[str] | None]
"""The exporters to which a journal is to be delivered though its owner lives; None: its owner does it, or another process."""


def nobody(_about: About) -> None:
    """Only dead ones, as a process does that delivers itself."""


class Adoption:
    """Used by one thread, and by whoever flushes; `outboxes` by any."""

    def __init__(
        self,
        state: Path,
        names: Collection[str],
        passing: Collection[str],
        own: str,
        attends: Attends,
        steps: LostSteps,
        disk_limit: DiskLimit,
    ) -> None:
        self._root, self._own, self._disk_limit = state / JOURNALS, own, disk_limit
        self._names, self._passing, self._attends, self._steps = names, passing, attends, steps
        self._held: dict[str, tuple[Outbox, Claim]] = {}
        self._looking = threading.RLock()  # re-entrant: a signal handler that finds no page collects, and looks for the dead
        """Held while a journal is taken, recovered or let go. No outbox is asked meanwhile: it may be looking for the dead itself."""
        self._left_alone: set[str] = set()
        self._abouts: dict[str, About] = {}
        """Of journals that are not ours, or not yet: a journal's never changes, and neither does its name."""
        self._live: set[str] = set()
        self._more_left = True
        """Whether what ended processes left may have become too much."""
        self._patient_until = 0.0 if attends is nobody else time.monotonic() + PATIENCE
        self._once = Once()
        self.interrupted = 0
        """Operations of dead processes that were reported."""
        self._past: Counter[tuple[str, tuple[str, ...]]] = Counter()
        """What owners counted, and outboxes that were let go."""
        self._counting = threading.Lock()

    def outboxes(self) -> list[Outbox]:
        return [outbox for outbox, _ in list(self._held.values())]

    def health(self) -> Counts:
        """Counters, by metric and labels; none ever falls."""
        with self._counting:
            found = self._past.copy()
            found.update(self._disk_limit.health())
            for outbox in self.outboxes():
                found.update(outbox.health())
        return dict(found)

    def live(self) -> int:
        """How many owners live of those that we delivery for."""
        return len(self._live)

    def crowd(self) -> int:
        """How many journals there are."""
        try:
            return len(os.listdir(self._root))
        except OSError:
            return 0

    def look(self) -> bool:
        """Take what there is to take, finish what dead processes began; whether an exporter may have something new."""
        try:
            found = sorted(entry.path for entry in os.scandir(self._root))
        except OSError:
            return False
        claims.remove_unfinished(path for path in found if path.endswith(UNFINISHED))
        news = False
        for directory in found:
            if directory != self._own and directory not in self._left_alone and not directory.endswith(UNFINISHED):
                try:
                    with self._looking:
                        news |= self._look_after(directory) if directory in self._held else self._take(directory)
                except JournalError as error:  # damaged, or of a newer version: not ours to touch
                    if os.path.exists(directory):  # else it was finished and removed while we looked
                        self._left_alone.add(directory)
                        self._once.say(directory, str(error))
                except OSError as error:  # a full disk may have room later
                    self._once.say(directory, f"{directory}: cannot be taken over yet: {error}")
        with self._looking:
            self._left_alone.intersection_update(found)
            for gone in self._abouts.keys() - found:
                del self._abouts[gone]
        return news

    def _take(self, directory: str) -> bool:
        wanted = None if self._attends is nobody else self._attends(self._about(directory))
        claim = claims.claim_dead(directory) if wanted is None else claims.claim_delivery(directory)
        if claim is None:
            return False
        try:
            if claim.about.delivery == "daemon" and wanted is None:  # it is for the daemon's exporters, which we do not know
                self._left_alone.add(directory)
                claim.release()
                return False
            if claim.owner_is_dead():
                self.interrupted += recovery.recover(claim, self._steps.found)
                self._more_left = True
            else:
                self._live.add(directory)
        except BaseException:
            claim.release()
            raise
        self._abouts.pop(directory, None)
        exporters = {*(claim.about.exporters if wanted is None else wanted), *self._passing}
        outbox = Outbox(directory, claim.about.resource, exporters, self._steps.noted if claim.about.delivery != "in-process" else None)
        if directory in self._live:
            outbox.save()  # so that its owner knows for which exporters to wait
        self._held[directory] = outbox, claim
        return True

    def _about(self, directory: str) -> About:
        if directory not in self._abouts:
            self._abouts[directory] = read_about(directory)
        return self._abouts[directory]

    def _look_after(self, directory: str) -> bool:
        """A live one, until it is not."""
        _, claim = self._held[directory]
        if directory not in self._live or not claim.owner_is_dead():
            return False
        self.interrupted += recovery.recover(claim, self._steps.found)
        self._live.discard(directory)
        self._more_left = True
        return True

    def care(self) -> None:
        """For those that we hold: keep them within their limits, take what live owners counted, let dead ones go."""
        if self._more_left and time.monotonic() >= self._patient_until:
            self._more_left = False
            dead = self._held.keys() - self._live
            self._disk_limit.keep_within_limit({directory: self._held[directory][0] for directory in dead})
        for directory, (outbox, _) in list(self._held.items()):
            if not os.path.exists(directory):  # removed by hand
                self._let_go(directory, delivered=True)
            elif directory in self._live:
                self._keep_within_limit(outbox)
                self._count(directory)
            elif not any(outbox.batch(name)[0] for name in self._names if outbox.wants(name)):
                # held only as long as we can do something for it: it takes two descriptors of the host's
                self._let_go(directory, delivered=not outbox.pending())

    def _keep_within_limit(self, outbox: Outbox) -> None:
        try:
            outbox.keep_within_limit()
        except OSError as error:  # the others are not to wait for it
            self._once.say(outbox.directory, f"{outbox.directory}: {error}")

    def release(self) -> None:
        """All of them; what is not delivered is for whoever comes next."""
        for directory, (outbox, _) in list(self._held.items()):
            self._let_go(directory, delivered=directory not in self._live and not outbox.pending())

    def _let_go(self, directory: str, *, delivered: bool) -> None:
        """`delivered`: to all its exporters, of which we may not have all."""
        with self._looking:
            if directory not in self._held:  # somebody else was first
                return
            self._count(directory)
            outbox, claim = self._held[directory]
            if delivered:
                remove_tree(directory)
            else:
                self._left_alone.add(directory)
            claim.release()
            self._live.discard(directory)
            with self._counting:
                self._held.pop(directory, None)
                self._past.update(outbox.health())

    def _count(self, directory: str) -> None:
        news = take_counts(directory)
        with self._counting:
            self._past.update(news)
