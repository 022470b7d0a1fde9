"""A state directory with every kind of file that we read back, and random damage to one of them."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path

from ckpt_observe import config
from ckpt_observe.cli.doctor.state_directory import check_journals
from ckpt_observe.delivery import daemon
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.errors import CkptObserveError
from ckpt_observe.exporter import Exporter
from ckpt_observe.exporters.local import LocalExporter
from ckpt_observe.exporters.metrics import MetricsExporter
from ckpt_observe.journal.activity import read_activity
from ckpt_observe.journal.directory import save_counts, take_counts
from ckpt_observe.journal.journal import Journal
from ckpt_observe.metricstore.snapshot import gather
from ckpt_observe.record.encoding import encode_line
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, metrics
from ckpt_observe.tracestore import FILENAME, TraceReader
from tests.delivery.conftest import NOW, FakeExporter, record_operation

KEPT_IDS = [f"good-{number}" for number in range(4)]
"""Operations in a second journal, which is never damaged."""
DROPPED = {(metrics.DROPPED_RECORDS.name, ("overflow",)): 2.0}
FRAGMENTS = (
    b"\xff",
    b"\x00",
    b"\n",
    b'"',
    b"[" * 2000,
    b"{}",
    b"-1",
    b"1e999",
    b"9" * 5000,
    b'"\\ud800"',
    b"null",
    b"99999999999999999999",
)


def all_exporters(state: Path) -> list[Exporter]:
    """Return one exporter that a test controls, and those that store files."""
    return [FakeExporter(), LocalExporter(state), MetricsExporter(state, lambda: gather(state, "1"))]


class DamagedState:
    """Builds the directory once, and restores it before each mutation. Paths stay the same, because `about.json` contains some."""

    def __init__(self, root: Path) -> None:
        self.state, self.pages = root / "state", root / "pages"
        self._copy = root / "copy"
        sys.stdout.flush()
        for work in (self._record_damaged, self._record_good):
            child = os.fork()
            if not child:
                try:
                    work()
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
        shutil.copytree(root, self._copy, ignore=lambda _path, _names: ["copy"])
        self.files = [path.relative_to(self._copy) for path in sorted(self._copy.rglob("*")) if path.is_file() and not self._is_good(path)]

    def _is_good(self, path: Path) -> bool:
        return any(self.good in part for part in path.parts)

    @property
    def good(self) -> str:
        """Name of the journal that is never damaged: the one that was created last."""
        return max(os.listdir(self._copy / "state" / "journals"), key=lambda name: name.rpartition("-")[2])

    def _journal(self) -> Journal:
        return Journal(self.state, self.pages, [exporter.identity for exporter in all_exporters(self.state)], {"service.name": "test"})

    def _record_damaged(self) -> None:
        journal = self._journal()
        for number in range(4):
            record_operation(journal, f"damaged-{number}")
            journal.pool.collect()
        outbox = Outbox(journal.directory, {}, ["fake"])
        spans, cursor = outbox.next_batch("fake")
        for exporter in all_exporters(self.state)[1:]:
            exporter.send(spans)
            exporter.close()
        outbox.advance("fake", cursor)
        record_operation(journal, "damaged-4")
        journal.pool.collect()
        save_counts(journal.directory, DROPPED)
        take_counts(journal.directory)
        daemon.acquire_daemon_lock(self.state)
        journal.take().append(
            encode_line((events.BEGIN, "a" * 16, NOW, events.OPERATION, "save", "b" * 32, "", {names.ID: "running"}, None))
        )
        journal.sync()

    def _record_good(self) -> None:
        journal = self._journal()
        for key in KEPT_IDS:
            record_operation(journal, key)
        journal.pool.collect()

    def restore(self) -> None:
        for directory in (self.state, self.pages):
            shutil.rmtree(directory)
            shutil.copytree(self._copy / directory.name, directory)

    def damage(self, rng: random.Random) -> str:
        """Damage one file. Return a description."""
        path = self.state.parent / rng.choice(self.files)
        kind = rng.choice((_flip, _flip, _insert, _insert, _cut, _truncate, _extend, _replace))
        detail = kind(path, rng)
        return f"{kind.__name__} {path.name} {detail}"


def _flip(path: Path, rng: random.Random) -> object:
    data = bytearray(path.read_bytes())
    used = max(1, len(data.rstrip(b"\0")))
    position = rng.randrange(used)
    data[position : position + 1] = bytes([rng.randrange(256)])
    path.write_bytes(data)
    return position


def _insert(path: Path, rng: random.Random) -> object:
    data = path.read_bytes()
    position, fragment = rng.randrange(len(data.rstrip(b"\0")) + 1), rng.choice(FRAGMENTS)
    path.write_bytes(data[:position] + fragment + data[position + rng.choice((0, len(fragment))) :])
    return position, fragment[:20]


def _cut(path: Path, rng: random.Random) -> object:
    data = path.read_bytes()
    start = rng.randrange(len(data) + 1)
    path.write_bytes(data[:start] + data[start + rng.randrange(64) :])
    return start


def _truncate(path: Path, rng: random.Random) -> object:
    size = rng.randrange(path.stat().st_size + 1)
    os.truncate(path, size)
    return size


def _extend(path: Path, rng: random.Random) -> object:
    size = rng.choice((1 << 20, 3 << 30))
    os.truncate(path, size)
    return size


def _replace(path: Path, rng: random.Random) -> object:
    path.unlink()
    kind = rng.choice(("fifo", "directory", "link", "loop", "nothing"))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        (path / "full").mkdir(parents=True)
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    return kind


def use_everything(state: Path) -> list[str]:
    """Read every file as a program, a daemon and the commands do. Return the ids that an exporter received."""
    exporters = all_exporters(state)
    try:
        return _use_everything(state, exporters)
    finally:
        for exporter in exporters:  # whatever an unhandled fault left open
            exporter.close()


def _use_everything(state: Path, exporters: list[Exporter]) -> list[str]:
    delivery = Delivery(state, exporters)
    received: list[str] = []
    exporters[0].send = lambda spans: received.extend(str(span.attributes.get(names.ID)) for span in spans)
    delivery.health()
    read_activity(state)
    list(check_journals(config.read({}, dir=str(state))))
    delivery.adoption.scan()
    for _ in range(3):
        for worker in delivery.workers:
            worker.retry_now()
            delivery._deliver(worker)
        delivery.pending()
    delivery.adoption.maintain()
    delivery.health()
    delivery.close(0)
    read_activity(state)
    daemon.is_running(state)
    try:
        daemon.acquire_daemon_lock(state).release()
    except (CkptObserveError, OSError):
        pass
    try:
        with TraceReader(state / FILENAME) as reader:
            for trace in reader.newest():
                reader.spans(trace.trace_id)
    except CkptObserveError:
        pass
    return received
