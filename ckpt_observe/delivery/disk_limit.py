"""Bounds the disk space that ended processes leave behind, so that a state directory that nobody delivers does not fill the disk.

Each live process bounds its own journal. The journals of ended processes share one limit: beyond it the oldest records are dropped first
and counted. Reports of interrupted operations are dropped last. Only journals that we hold, or that nobody holds, are touched.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ckpt_observe.delivery.outbox import Outbox, exporters_with_cursor
from ckpt_observe.errors import JournalError
from ckpt_observe.journal import claims, recovery, spool
from ckpt_observe.journal.directory import INTERRUPTED, JOURNALS, UNFINISHED, Counts, take_counts
from ckpt_observe.semconv import metrics
from ckpt_observe.support.files import remove_tree
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import WarningLog

JOURNAL_OVERHEAD: Final = 32 << 10
"""Bytes that a journal takes besides its records: its directory and small files."""


class DiskLimit:
    """The limit for the ended processes of one state directory. Used by one thread."""

    def __init__(self, state: Path, limit: int) -> None:
        self._root, self._limit = state / JOURNALS, limit
        self._warnings = WarningLog()
        self._totals: Counter[tuple[str, tuple[str, ...]]] = Counter()

    def health(self) -> Counts:
        """Return what was dropped from journals that we did not hold, and what their owners had counted, by metric and labels."""
        return dict(self._totals)

    def recover_pages(self, pages_directory: str) -> None:
        """Move the pages of dead processes to disk. Each process takes half a mebibyte of shared memory or more until that is done."""
        for name in {file.rpartition("-")[0] for file in os.listdir(pages_directory)}:
            directory = str(self._root / name)
            try:
                with self._claim(directory, {}):  # claiming a journal recovers its pages
                    pass
            except OSError as error:
                raise_host_exception(error)
                self._warnings.warn_once("pages", "Cannot move the pages of %s from shared memory to disk: %s.", directory, error.strerror)

    def enforce(self, outboxes: Mapping[str, Outbox] | None = None) -> None:
        """Drop the oldest records beyond the limit. `outboxes` are the journals of ended processes that we deliver, by directory."""
        try:
            sizes = self._sizes()
            if sum(sizes.values()) > self._limit:
                self._shrink(sorted(sizes, key=_creation_time, reverse=True), outboxes or {})
        except FileNotFoundError:  # nothing was ever recorded in this state directory
            pass
        except OSError as error:
            raise_host_exception(error)
            self._warnings.warn_once("disk", "Cannot enforce the disk limit of ended processes in %s: %s.", self._root, error.strerror)

    def _sizes(self) -> dict[str, int]:
        return {entry.path: _size(entry.path) for entry in os.scandir(self._root) if not entry.name.endswith(UNFINISHED)}

    def _shrink(self, newest_first: list[str], outboxes: Mapping[str, Outbox]) -> None:
        """Shrink to three quarters of the limit, so that the next process does not have to drop something again."""
        for spare_interrupted in (True, False):
            room, total = self._limit * 3 // 4, 0
            for directory in newest_first:
                journal_room = max(0, room - total - JOURNAL_OVERHEAD)
                try:
                    has_dropped, size = self._shrink_journal(directory, outboxes, journal_room, spare_interrupted=spare_interrupted)
                except OSError as error:  # goes on with the next one
                    raise_host_exception(error)
                    self._warnings.warn_once(
                        directory, "Cannot drop the oldest records of %s: %s. The disk limit may be exceeded.", directory, error.strerror
                    )
                    continue
                total += size
                if has_dropped:
                    room = 0  # everything older is dropped too, even if a small journal would still fit
                    self._warn_dropped()
            if total <= self._limit:
                return

    def _shrink_journal(self, directory: str, outboxes: Mapping[str, Outbox], room: int, *, spare_interrupted: bool) -> tuple[bool, int]:
        """Return whether something was dropped, and the remaining size. A journal that is not ours, or removed meanwhile, counts as 0."""
        with self._claim(directory, outboxes) as outbox:
            if outbox is None or not os.path.exists(directory):
                return False, 0
            keep_last = spare_interrupted and os.path.exists(os.path.join(directory, INTERRUPTED))
            has_dropped = outbox.shrink(room, keep=int(keep_last))
            return has_dropped, _size(directory) if spool.segments(directory) else 0

    @contextmanager
    def _claim(self, directory: str, outboxes: Mapping[str, Outbox]) -> Iterator[Outbox | None]:
        """Hold a journal, recover its pages and yield its outbox; None if its owner is alive or another process delivers it."""
        if directory in outboxes:
            yield outboxes[directory]
            return
        try:
            claim = claims.claim_dead(directory)
        except JournalError:  # damaged, or written by a newer version: do not touch it
            claim = None
        if claim is None:
            yield None
            return
        try:
            recovery.recover(claim)
            outbox = Outbox(directory, {}, claim.about.exporters or exporters_with_cursor(directory) or ("daemon",))
            yield outbox
            self._totals.update(outbox.health())
            if not spool.segments(directory):
                self._totals[metrics.DROPPED_RECORDS.name, ("overflow",)] += outbox.set_aside.count()
                self._totals.update(take_counts(directory))
                remove_tree(directory)
        finally:
            claim.release()

    def _warn_dropped(self) -> None:
        self._warnings.warn_once(
            "limit",
            "Ended processes left more than %d MiB in %s: the oldest records are dropped, because nobody delivers them or an exporter"
            " is down. Run `ckpt-observe doctor` to find out which.",
            self._limit >> 20,
            self._root,
        )


def _creation_time(directory: str) -> str:
    """Return the time at the end of a journal's name."""
    return directory.rpartition("-")[2]


def _size(directory: str) -> int:
    try:
        return spool.size(directory) + JOURNAL_OVERHEAD
    except OSError as error:  # removed meanwhile, or not a directory
        raise_host_exception(error)
        return 0
