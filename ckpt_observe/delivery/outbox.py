"""The spool of one journal on its way out: a cursor for each exporter that its owner asked for, kept on disk beside it."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeAlias

import msgspec

from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.journal import spool
from ckpt_observe.journal.directory import Counts
from ckpt_observe.journal.spool import Cursor
from ckpt_observe.semconv import metrics
from ckpt_observe.span import Span
from ckpt_observe.support.files import replace_file

SPOOL_LIMIT: Final = 256 << 20
"""Disk that one process may take while an exporter is away: about 200,000 operations. Beyond it the oldest go, and are counted."""

_CURSORS: Final = "cursors.json"


Noted: TypeAlias = Callable[[bytes], bytes]


class Outbox:
    """Read by one thread for each exporter."""

    def __init__(self, directory: str, resource: dict[str, Any], wanted: Iterable[str], noted: Noted | None = None) -> None:
        self.directory, self._resource, self._noted = directory, resource, noted
        """`noted` adds what the delivery knows, where whoever wrote the records did not."""
        self._lock = threading.Lock()
        saved = _load(directory)
        self._cursors = {exporter: saved.get(exporter, Cursor()) for exporter in wanted}
        self._last: tuple[Cursor, list[Span], Cursor, int] | None = None
        """The batch assembled last, and of how many records: exporters that keep pace with each other share it."""
        self._still: dict[str, tuple[Cursor, tuple[int, int] | None]] = {}
        """Where each exporter last found nothing new, and how the spool looked then."""
        self._handed = dict.fromkeys(self._cursors, 0)
        """Records in the batch that each exporter was given last."""
        self.counts: Counter[str] = Counter()
        """Records that were corrupt, not understood, or dropped beyond the limit (for each exporter that had not had them)."""

    def wants(self, exporter: str) -> bool:
        return exporter in self._cursors

    def batch(self, exporter: str) -> tuple[list[Span], Cursor]:
        """The next spans for an exporter, and the cursor to pass to `passed` when it has them. No spans and its own cursor: nothing new."""
        with self._lock:
            cursor = self._cursors[exporter]
            stamp = spool.change_stamp(self.directory, cursor)
            if stamp is not None and self._still.get(exporter) == (cursor, stamp):
                return [], cursor
            if self._last is None or self._last[0] != cursor or self._last[2] == cursor:  # there may be something new by now
                self._last = (cursor, *self._read(cursor))
            _, spans, after, self._handed[exporter] = self._last
            if not spans and after == cursor:
                self._still[exporter] = cursor, stamp
            return spans, after

    def _read(self, cursor: Cursor) -> tuple[list[Span], Cursor, int]:
        try:
            records = spool.read(self.directory, cursor)
        except FileNotFoundError:  # removed by hand: what was in it is gone
            return [], cursor, 0
        spans: list[Span] = []
        for payload in records.payloads:
            made = assemble(self._noted(payload) if self._noted else payload, self._resource)
            spans += made
            self.counts["unknown"] += not made
        self.counts["corrupt"] += records.corrupt
        return spans, records.end, len(records.payloads)

    def passed(self, exporter: str, cursor: Cursor) -> None:
        """The exporter is done with everything before the cursor. Segments that all exporters are done with are removed."""
        with self._lock:
            if cursor <= self._cursors[exporter]:
                if cursor != self._cursors[exporter]:  # dropped and counted while the exporter was at it, and yet it has them
                    self.counts[f"dropped {exporter}"] -= self._handed[exporter]
                return
            self._cursors[exporter] = cursor
            self._last = None if self._last and self._last[0] < min(self._cursors.values()) else self._last
            self.save()
            self._remove_before(min(self._cursors.values()))

    def pending(self) -> bool:
        """Whether some exporter has not had everything that is in the spool."""
        with self._lock:
            for cursor in self._cursors.values():
                try:
                    if spool.read(self.directory, cursor, 1).end != cursor:
                        return True
                except FileNotFoundError:
                    continue
                except OSError:  # it is there, and cannot be read now
                    return True
        return False

    def keep_within_limit(self) -> None:
        """For a live process: the segment that it writes stays."""
        self.shrink(SPOOL_LIMIT, keep=1)

    def shrink(self, limit: int, *, keep: int) -> bool:
        """Drop the oldest segment while there is too much, but the last ones; count what each exporter loses by it. Whether any was."""
        with self._lock:
            before = self._cursors.copy()
            while spool.size(self.directory) > limit and len(oldest := spool.segments(self.directory)) > keep:
                after = Cursor(oldest[0] + 1, 0)
                for exporter, cursor in self._cursors.items():
                    while cursor < after and cursor < (records := spool.read(self.directory, cursor)).end < after:
                        self.counts[f"dropped {exporter}"] += len(records.payloads)
                        cursor = records.end  # noqa: PLW2901
                    self._cursors[exporter] = max(self._cursors[exporter], after)
                self._last = None
                self.save()
                self._remove_before(after)
            return self._cursors != before

    def health(self) -> Counts:
        """Records that were lost, by metric and labels."""
        found: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for kind, count in list(self.counts.items()):
            reason = "overflow" if kind.startswith("dropped ") else kind
            if reason in metrics.DROP_REASONS:
                found[metrics.DROPPED_RECORDS.name, (reason,)] += count
        return dict(found)

    def save(self) -> None:
        try:
            replace_file(os.path.join(self.directory, _CURSORS), msgspec.json.encode(self._cursors), sync=False)
        except OSError:  # full or gone: they are right in memory, and a repeat is harmless
            self.counts["cursor not saved"] += 1

    def _remove_before(self, cursor: Cursor) -> None:
        for number in spool.segments(self.directory):
            if number < cursor.segment:
                with suppress(FileNotFoundError):
                    os.unlink(spool.segment_path(self.directory, number))


def backlog(directory: str, exporters: Iterable[str]) -> dict[str, int]:
    """Bytes of a journal's spool that each exporter has not had, by the cursors on disk."""
    saved = _load(directory)
    return {exporter: spool.size(directory, saved.get(exporter, Cursor())) for exporter in exporters}


def known(directory: str) -> set[str]:
    """The exporters that have a cursor there: whoever delivers it wrote them down."""
    return set(_load(directory))


def _load(directory: str) -> dict[str, Cursor]:
    try:
        with open(os.path.join(directory, _CURSORS), "rb") as file:
            return msgspec.json.decode(file.read(), type=dict[str, Cursor])
    except (OSError, msgspec.MsgspecError):  # none yet, or damaged: begin at the beginning
        return {}
