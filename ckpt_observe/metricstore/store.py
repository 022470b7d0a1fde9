"""The sum of all processes, in one SQLite file of the state directory: `metrics.db`.

Every process adds its own spans, one transaction for each batch; whoever has the port reads the sum. So a counter outlives the process
that counted, nobody has to gather numbers from processes that may be dead, and a restart goes on where the last one stopped. It is
simpler than a file for each process with somebody to fold the dead ones in, and it cannot fold one twice.

**Counted once.** A delivery repeats a batch, or a part of it, when it died between our commit and its cursor. The ids of the operations
counted last are kept in the same transaction as the numbers: an operation that comes again within the next 100,000 is not counted again.
A repeat that reaches further back takes a damaged cursor file while another exporter had been away for longer than that.

**Durable.** `synchronous = FULL`: after `fold` returns a power cut takes nothing back, so no counter goes backwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from ckpt_observe.metricstore.database import connect
from ckpt_observe.metricstore.labels import PROGRESS, Labels
from ckpt_observe.metricstore.points import Counter, Histogram, Point
from ckpt_observe.metricstore.progress import Progress
from ckpt_observe.metricstore.tally import Key, Record, Tally, records
from ckpt_observe.semconv.metrics import LABEL_OVERFLOW, METRICS
from ckpt_observe.span import Span
from ckpt_observe.support import files, sqlite

FILENAME: Final = "metrics.db"
REMEMBERED: Final = 100_000
"""Operations whose repetition is noticed."""
_AT_ONCE: Final = 500  # below SQLite's oldest limit of parameters
_KINDS: Final = {spec.name: Histogram if spec.instrument == "histogram" else Counter for spec in METRICS}
_encode = msgspec.msgpack.encode
_decoders: Final[dict[type, Any]] = {kind: msgspec.msgpack.Decoder(kind) for kind in (Counter, Histogram, Progress)}
_labels_to_text = msgspec.json.Encoder().encode
_labels_from_text = msgspec.json.Decoder(tuple[str, ...]).decode


class Sum(msgspec.Struct, frozen=True):
    """What the store holds."""

    id: str
    created: float
    points: dict[str, dict[tuple[str, ...], Point]]
    """By metric, then by label values."""
    progress: dict[tuple[str, str], Progress]
    """By operation and task."""


class MetricStore:
    """One connection, for one thread at a time. After an exception from `fold` or `add`, close it and open a new one."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)
        self._label = Labels(self._connection)
        self._path, self._file = path, files.identity(path)

    def gone(self) -> bool:
        """Whether somebody moved or removed the file: then nobody would read what is added to it."""
        return files.identity(self._path) != self._file

    def fold(self, spans: Sequence[Span]) -> None:
        """Count every operation that was not counted yet: all of them, or none (sqlite3.Error)."""
        with sqlite.transaction(self._connection):
            now = time.time()
            self._label.begin(int(now // 86400))
            tally = Tally(self._label, now)
            for span, phases in self._new(records(spans)):
                tally.add(span, phases)
            for label, times in self._label.overflow.items():
                tally.count(LABEL_OVERFLOW, (label,), times)
            self._label.overflow.clear()
            self._merge(tally)

    def add(self, counts: Mapping[Key, float]) -> None:
        """Add to counters that do not come from spans."""
        with sqlite.transaction(self._connection):
            for key, value in counts.items():
                self._put(key, Counter(value))

    def read(self) -> Sum:
        """Everything, as of one moment."""
        with sqlite.snapshot(self._connection):
            created, id = self._connection.execute("SELECT created, id FROM about").fetchone()
            rows = self._connection.execute("SELECT metric, labels, point FROM series ORDER BY metric, labels").fetchall()
        found = Sum(id, created, {}, {})
        for metric, text, blob in rows:
            labels = _labels_from_text(text)
            if metric == PROGRESS:
                operation, task = labels
                found.progress[operation, task] = _decoders[Progress].decode(blob)
            elif metric in _KINDS:  # else a metric that this version no longer has
                found.points.setdefault(metric, {})[labels] = _decoders[_KINDS[metric]].decode(blob)
        return found

    def close(self) -> None:
        self._connection.close()

    def _new(self, found: Iterable[Record]) -> list[Record]:
        """Those that were not counted before; they are noted as counted."""
        came = {bytes.fromhex(record[0].trace_id + record[0].span_id): record for record in found}
        run, ids = self._connection.execute, list(came)
        for start in range(0, len(ids), _AT_ONCE):
            some = ids[start : start + _AT_ONCE]
            marks = ",".join("?" * len(some))
            for (known,) in run(f"SELECT id FROM seen WHERE id IN ({marks})", some):  # noqa: S608 - question marks
                del came[known]
        self._connection.executemany("INSERT INTO seen (id) VALUES (?)", ((id,) for id in came))
        run("DELETE FROM seen WHERE number <= (SELECT max(number) FROM seen) - ?", (REMEMBERED,))
        return list(came.values())

    def _merge(self, tally: Tally) -> None:
        for key, counter in tally.counters.items():
            self._put(key, counter)
        for key, filling in tally.histograms.items():
            self._put(key, filling.done())
        for labels, attempts in tally.attempts.items():
            progress = self._get((PROGRESS, labels), Progress) or Progress()
            for attempt in sorted(attempts, key=lambda each: each.end):
                progress.apply(attempt)
            self._set((PROGRESS, labels), progress)

    def _put(self, key: Key, added: Any) -> None:
        kept = self._get(key, type(added))
        if kept is not None:
            kept.add(added)
        self._set(key, kept or added)

    def _get(self, key: Key, kind: type) -> Any:
        query = "SELECT point FROM series WHERE metric = ? AND labels = ?"
        row = self._connection.execute(query, (key[0], _labels_to_text(key[1]).decode())).fetchone()
        return _decoders[kind].decode(row[0]) if row else None

    def _set(self, key: Key, point: Any) -> None:
        row = (key[0], _labels_to_text(key[1]).decode(), _encode(point))
        self._connection.execute("INSERT OR REPLACE INTO series (metric, labels, point) VALUES (?, ?, ?)", row)
