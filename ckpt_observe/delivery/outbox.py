"""The spool of one journal as the exporters read it: one cursor for each exporter, stored beside the spool."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.delivery.record_losses import RecordLosses
from ckpt_observe.delivery.send_marks import SendMarks
from ckpt_observe.delivery.set_aside import SetAside
from ckpt_observe.journal import spool
from ckpt_observe.journal.cursors import read_cursors, write_cursors
from ckpt_observe.journal.directory import Counts
from ckpt_observe.journal.pool import Annotate
from ckpt_observe.journal.spool import Cursor
from ckpt_observe.semconv import metrics
from ckpt_observe.span import Span
from ckpt_observe.support.files import set_aside
from ckpt_observe.support.host_exceptions import raise_host_exception

SPOOL_LIMIT: Final = 256 << 20
"""Bytes on disk for one process while an exporter is down: about 200,000 operations. Beyond it the oldest are dropped and counted."""

BATCH: Final = 1 << 20
"""Bytes of records in a batch, about 2,000 operations."""
SMALL_BATCH: Final = 1 << 17
"""The same for a backend that stores every copy. The next program must ask for the batch that was being sent when a program ended: with
small batches, that takes three queries instead of twenty, and a short program gets on."""

_CACHED_SPANS: Final = 10_000
"""Spans that are kept in memory for exporters that are slower than the others, besides the latest batch: those of a full one."""


class _Batch(NamedTuple):
    """Records as spans: the position behind them, their number, and how many of them are damaged or not understood."""

    spans: list[Span]
    end: Cursor
    size: int
    damage: Counter[str]


class Outbox:
    """Hands the records of one journal to the exporters as spans. Called by one thread for each exporter.

    `annotate` is applied to the records that are read. It is None if that was done before the record was written to the spool.
    `is_restarted`: the machine was restarted since the journal was created. `small_batches`: exporters that get fewer records at a time.
    `attributes`: those of every task and operation of the journal.
    """

    def __init__(
        self,
        directory: str,
        resource: dict[str, Any],
        exporters: Iterable[str],
        annotate: Annotate | None = None,
        *,
        genai_events: bool = False,
        is_restarted: bool = False,
        small_batches: Collection[str] = (),
        attributes: dict[str, Any] | None = None,
    ) -> None:
        self._attributes = attributes or {}
        self.directory, self._resource, self._annotate, self._genai_events = directory, resource, annotate, genai_events
        self._lock = threading.Lock()
        stored = read_cursors(directory, quarantine=True)
        self._cursors = {exporter: stored.get(exporter, Cursor()) for exporter in exporters}
        self._limits = {exporter: SMALL_BATCH if exporter in small_batches else BATCH for exporter in self._cursors}
        self._cache: dict[tuple[Cursor, int], _Batch] = {}
        """The last batches that were read, by the cursor before them and their limit. Exporters share them: one that is slower than the
        others gets the same batches, so that each record is assembled once."""
        self._sending: dict[str, _Batch] = {}
        """The batch that each exporter was given last, and has not received yet."""
        self._dropped: dict[str, _Batch] = {}
        """Batches that were dropped because of the limit after an exporter was given them: it may have received some of the records, even
        if it did not answer. They are counted as dropped, and sent again until the exporter has answered: only then is the count exact."""
        self._idle: dict[str, tuple[Cursor, tuple[int, int] | None]] = {}
        """For each exporter, the position at which nothing was new, and the stamp of the spool at that time."""
        self.set_aside = SetAside(directory)
        self.marks = SendMarks(directory, is_restarted=is_restarted)
        self._users: set[str] = set()
        self._is_retired = False
        self._use_lock = threading.Lock()
        """Guards `_users` and `_is_retired`, and is never held during anything else."""
        self.counts: Counter[str] = Counter()
        """Records that were corrupt, unknown, or dropped because of the limit (for each exporter that did not have them yet)."""
        self._losses = RecordLosses(self.counts, self._cursors, self._read_damage)

    def set_resource(self, resource: dict[str, Any]) -> None:
        """Replace the resource of spans that were not sent yet."""
        with self._lock:
            if resource is not self._resource:
                self._resource = resource
                self._cache.clear()

    def delivers_to(self, exporter: str) -> bool:
        """Return whether the records of this journal are meant for the exporter."""
        return exporter in self._cursors

    @contextmanager
    def used_by(self, exporter: str) -> Iterator[bool]:
        """Keep the journal from being released during a delivery. Yield False if it was released already: then do not use it."""
        with self._use_lock:
            is_usable = not self._is_retired
            if is_usable:
                self._users.add(exporter)
        try:
            yield is_usable
        finally:
            with self._use_lock:
                self._users.discard(exporter)

    def retire(self) -> bool:
        """End the use of this object, because another one will continue. Return False if a delivery is under way."""
        with self._use_lock:
            self._is_retired = not self._users
            return self._is_retired

    def has_more(self, exporter: str) -> bool:
        """Return whether there is something that the exporter has not received."""
        with self._lock:
            cursor = self._cursors.get(exporter)
            return exporter in self._dropped or (cursor is not None and self._has_more(cursor))

    def _has_more(self, cursor: Cursor) -> bool:
        try:
            return spool.read(self.directory, cursor, 1).end != cursor
        except FileNotFoundError:
            return False
        except OSError as error:  # the file exists, but cannot be read now
            raise_host_exception(error)
            return True

    def has_large_backlog(self, exporter: str) -> bool:
        """Return whether more than half a batch is waiting for the exporter."""
        cursor = self._cursors.get(exporter)
        try:
            return cursor is not None and spool.size(self.directory, cursor) > self._limits[exporter] // 2
        except OSError as error:  # removed, or cannot be read now
            raise_host_exception(error)
            return False

    def position(self, exporter: str) -> Cursor:
        """Return where the next batch of an exporter begins."""
        return self._cursors[exporter]

    def next_batch(self, exporter: str) -> tuple[list[Span], Cursor]:
        """Return the next spans for an exporter, and the cursor to pass to `advance` once they are delivered.

        If nothing is new, the list is empty and the cursor is the exporter's present one. Only for the thread that delivers to it.
        """
        with self._lock:
            batch = self._sending[exporter] = self._next_batch(exporter)
            return batch.spans, batch.end

    def has_batch(self, exporter: str) -> bool:
        """Return whether the next batch of an exporter has spans. For any thread."""
        with self._lock:
            return bool(self._next_batch(exporter).spans)

    def _next_batch(self, exporter: str) -> _Batch:
        if exporter in self._dropped:
            return self._dropped[exporter]
        cursor = self._cursors[exporter]
        stamp = spool.change_stamp(self.directory, cursor)
        if stamp is not None and self._idle.get(exporter) == (cursor, stamp):
            return _empty_batch(cursor)
        request = cursor, self._limits[exporter]
        batch = self._cache.get(request)
        if batch is None or batch.end == cursor:  # an empty batch may have grown by now
            batch = self._cache[request] = self._read(*request)
            while len(self._cache) > 1 and sum(len(each.spans) for each in self._cache.values()) > _CACHED_SPANS:
                del self._cache[next(iter(self._cache))]
        if not batch.spans and batch.end == cursor:
            self._idle[exporter] = cursor, stamp
        return batch

    def _read(self, cursor: Cursor, limit: int) -> _Batch:
        try:
            records = spool.read(self.directory, cursor, limit)
        except FileNotFoundError:  # removed by hand, with the records in it
            return _empty_batch(cursor)
        spans: list[Span] = []
        damage = Counter(corrupt=records.corrupt) if records.corrupt else Counter[str]()
        for record in self._annotate(records.payloads) if self._annotate else records.payloads:
            assembled = assemble(record, self._resource, self._attributes, genai_events=self._genai_events)
            spans += assembled
            if not assembled:
                damage["unknown"] += 1
        return _Batch(spans, records.end, len(records.payloads), damage)

    def _read_damage(self, cursor: Cursor) -> tuple[Cursor, Counter[str]]:
        batch = self._read(cursor, BATCH)
        return batch.end, batch.damage

    def advance(self, exporter: str, cursor: Cursor) -> None:
        """Record that the exporter needs nothing before the cursor any more. Remove segments that no exporter needs."""
        with self._lock:
            batch = self._sending.pop(exporter, _empty_batch(cursor))
            if self._dropped.pop(exporter, None):  # delivered after all, except those that are not understood
                self.counts[f"dropped {exporter}"] -= batch.size - batch.damage["unknown"]
            if cursor <= self._cursors[exporter]:
                return
            self._losses.pass_batch(exporter, self._cursors[exporter], cursor, batch.damage)
            self._cursors[exporter] = cursor
            first = min(self._cursors.values())
            self.save_cursors()
            self._remove_before(first)

    def count_missing(self, positions: Collection[Cursor]) -> None:
        """Count those of the removed records that an exporter has not received."""
        with self._lock:
            self._losses.add_missing(positions, self._cursors)

    def pending(self) -> bool:
        """Return whether there is something that an exporter has not received."""
        if self._dropped or self.set_aside.count():
            return True
        with self._lock:
            return any(map(self._has_more, self._cursors.values()))

    def enforce_spool_limit(self) -> None:
        """Drop the oldest records of a live process beyond SPOOL_LIMIT. The segment that the process writes to is never removed."""
        self.shrink(SPOOL_LIMIT, keep=1)

    def shrink(self, limit: int, *, keep: int) -> bool:
        """Drop the oldest segments, except the last `keep`, until the spool fits the limit. Return whether any was dropped.

        The records that each exporter loses are counted.
        """
        if spool.size(self.directory) <= limit:  # without the lock, which an exporter thread holds while it reads
            return False
        with self._lock:
            return self._drop_oldest(limit, keep)

    def _drop_oldest(self, limit: int, keep: int) -> bool:
        before = self._cursors.copy()
        while spool.size(self.directory) > limit and len(segments := spool.segments(self.directory)) > keep:
            after = Cursor(segments[0] + 1, 0)
            for exporter, cursor in self._cursors.items():
                while cursor < after and cursor < (records := spool.read(self.directory, cursor)).end < after:
                    self.counts[f"dropped {exporter}"] += len(records.payloads)
                    cursor = records.end  # noqa: PLW2901
                batch = self._sending.get(exporter)
                if batch and batch.spans and self._cursors[exporter] < batch.end < after:
                    self._dropped[exporter] = batch
                self._cursors[exporter] = max(self._cursors[exporter], after)
            self._losses.count_until(after, "corrupt")  # records that are not understood are counted as dropped
            self.save_cursors()
            self._remove_before(after)
        return self._cursors != before

    def health(self) -> Counts:
        """Return the number of lost records, by metric and labels."""
        totals: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for kind, count in list(self.counts.items()):
            reason = "overflow" if kind.startswith("dropped ") else kind
            if reason in metrics.DROP_REASONS:
                totals[metrics.DROPPED_RECORDS.name, (reason,)] += count
        return dict(totals)

    def save_cursors(self) -> None:
        """Write the cursors to disk. A failure is harmless: they are right in memory, and delivering twice does no damage."""
        try:
            write_cursors(self.directory, self._cursors)
        except OSError as error:  # disk full or gone
            raise_host_exception(error)
            self.counts["cursor not saved"] += 1

    def _remove_before(self, cursor: Cursor) -> None:
        self._cache = {request: batch for request, batch in self._cache.items() if request[0] >= cursor}
        for number in spool.segments(self.directory):
            if number < cursor.segment:
                try:
                    os.unlink(spool.segment_path(self.directory, number))
                except FileNotFoundError:
                    pass
                except OSError as error:
                    raise_host_exception(error)
                    if not set_aside(spool.segment_path(self.directory, number)):  # a directory, which is not ours
                        raise


def _empty_batch(end: Cursor) -> _Batch:
    return _Batch([], end, 0, Counter())


def backlog(directory: str, exporters: Iterable[str]) -> dict[str, int]:
    """Return how many bytes of a journal's spool each exporter has not received, according to the cursors on disk."""
    stored = read_cursors(directory)
    return {exporter: spool.size(directory, stored.get(exporter, Cursor())) for exporter in exporters}


def exporters_with_cursor(directory: str) -> set[str]:
    """Return the exporters of the process that delivers this journal, which stores a cursor for each. Empty before it has done so."""
    return set(read_cursors(directory))
