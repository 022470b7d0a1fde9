"""Runs delivery: one thread collects pages and adopts dead journals; one thread per exporter delivers.

So an exporter that is down delays no other, and none of them delays the collecting. It runs in the process itself, or in a companion or an
daemon, which has no journal of its own and delivers those of live processes too.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ckpt_observe.config import DISK_LIMIT
from ckpt_observe.delivery.adoption import Adoption, Attends, nobody
from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.exporter_worker import ExporterWorker
from ckpt_observe.delivery.lost_steps import History, LostSteps
from ckpt_observe.delivery.once import Once
from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.delivery.page_collector import SYNC_EVERY, TICK, Collector
from ckpt_observe.exporter import Exporter
from ckpt_observe.journal.directory import Counts
from ckpt_observe.journal.journal import Journal
from ckpt_observe.semconv import metrics

LOOK_EVERY: Final = 2.0
"""Seconds between two looks at the other processes' journals."""
LOOKS: Final = 10
"""How many of them are looked at in a second, where there are more: for everybody does it."""
ATTEND_EVERY: Final = 0.5
"""The same for who delivers for live processes: one does it for all, and nobody else sees them die."""
ATTENDED: Final = 500


class Delivery:
    """Delivers the journal of this process, if it has one, every dead one in the state directory, and the live ones that it attends."""

    def __init__(
        self,
        state: Path,
        exporters: Sequence[Exporter],
        journal: Journal | None = None,
        history: History = lambda _task: None,
        attends: Attends = nobody,
        limit: int = DISK_LIMIT,
    ) -> None:
        self._journal = journal
        self.workers = [ExporterWorker(exporter) for exporter in exporters]
        self._names = tuple(worker.key for worker in self.workers)
        passing = tuple(exporter.identity for exporter in exporters if not exporter.durable)
        steps = LostSteps(history, self._find_dead)
        written = steps.noted if journal and journal.about.delivery != "in-process" else None  # before it fell to us
        self._own = Outbox(journal.directory, journal.about.resource, self._names, written) if journal else None
        self._collector = Collector(journal, self._own.keep_within_limit, steps.noted) if journal and self._own else None
        self.adoption = Adoption(state, self._names, passing, journal.directory if journal else "", attends, steps, DiskLimit(state, limit))
        self._look_every, self._looks = (LOOK_EVERY, LOOKS) if attends is nobody else (ATTEND_EVERY, ATTENDED)
        self._news = threading.Condition()
        """For the exporters: something is in the spool."""
        self._progress = threading.Condition()
        """For who flushes: an exporter has had something."""
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._once = Once()
        self.seen = time.monotonic()
        """When the collecting thread last began a round: it is alive."""

    def start(self) -> None:
        work: list[tuple[str, Callable[..., None], tuple[ExporterWorker, ...]]] = [("collect", self._collect_forever, ())]
        work += [(f"exporter-{each.name}", self._deliver_forever, (each,)) for each in self.workers]
        self._threads = [threading.Thread(target=run, args=args, name=f"ckpt-observe-{name}", daemon=True) for name, run, args in work]
        for thread in self._threads:
            thread.start()

    def flush(self, timeout: float = 5.0) -> bool:
        """Bring everything recorded so far to every exporter; whether that was done in time."""
        deadline = time.monotonic() + timeout
        while self._collect():
            pass
        self.adoption.look()
        for worker in self.workers:
            worker.hurry()
        self._tell(self._news)
        with self._progress:
            while self.pending():
                left = deadline - time.monotonic()
                if left <= 0 or not any(thread.is_alive() for thread in self._threads[1:]):
                    return False
                self._progress.wait(min(left, TICK))
        return True

    def close(self, timeout: float = 2.0) -> bool:
        """Flush, stop, and leave what could not be delivered to whoever comes next; whether all was delivered."""
        if self._stopping.is_set():
            return not self.pending()
        deadline = time.monotonic() + timeout
        self.flush(timeout)
        self._stopping.set()
        self._tell(self._news)
        for thread in self._threads:
            thread.join(max(0.0, deadline + TICK - time.monotonic()))
        stopped = not any(thread.is_alive() for thread in self._threads)
        if stopped:
            self._collect()  # what ended while we flushed: it stays in the spool, and is not forgotten
        done = not self.pending()
        self.adoption.release()
        if self._journal is not None:
            if done and stopped and self._journal.pool.retire() and not self._journal.pool.has_uncollected():
                self._journal.remove()
            else:
                if self._collector is not None:
                    self._collector.sync()  # nobody else will: it waits for the next process, which may come after a reboot
                self._journal.release()
        if stopped:  # an exporter that hangs is left to the end of the process
            for worker in self.workers:
                worker.exporter.close()
        return done

    @property
    def interrupted(self) -> int:
        """Operations of dead processes that were reported."""
        return self.adoption.interrupted

    def health(self) -> Counts:
        """Counters of this delivery and its journals, by metric and labels."""
        found = Counter(self.adoption.health())
        for part in (self._collector, self._own):
            if part is not None:
                found.update(part.health())
        for each in self.workers:
            for spec, count in (
                (metrics.DELIVERED_SPANS, each.delivered),
                (metrics.REFUSED_SPANS, each.refused),
                (metrics.RETRIES, each.retries),
            ):
                found[spec.name, (each.name,)] += count
        return dict(found)

    # collecting

    def _collect_forever(self) -> None:
        synced = looked = 0.0
        while not self._stopping.is_set():
            self.seen = now = time.monotonic()
            try:
                self._collect()
                if self._collector and now - synced >= SYNC_EVERY:
                    synced = now
                    self._collector.sync()
                if now - looked >= max(self._look_every, self.adoption.crowd() / self._looks):
                    looked = now
                    self._look()
            except Exception as error:  # whatever it is, the next round may go better; a thread that ended would lose everything
                self._once.say(type(error).__name__, f"a fault of its own while collecting: {error!r}")
            self._stopping.wait(TICK)

    def _collect(self) -> bool:
        """Whether anything was moved to the spool."""
        if self._collector is None or not self._collector.collect():
            return False
        self._tell(self._news)
        return True

    def _look(self) -> None:
        self._find_dead()
        self.adoption.care()

    def _find_dead(self) -> None:
        if self.adoption.look():
            self._tell(self._news)

    # delivering

    def _outboxes(self) -> list[Outbox]:
        return ([self._own] if self._own else []) + self.adoption.outboxes()

    def pending(self) -> bool:
        """Whether something was recorded that an exporter of ours has not had."""
        if self._journal is not None and self._journal.pool.has_uncollected():
            return True
        try:
            return any(outbox.batch(name)[0] for outbox in self._outboxes() for name in self._names if outbox.wants(name))
        except OSError:  # it is there, and cannot be read now
            return True

    def _deliver_forever(self, worker: ExporterWorker) -> None:
        while not self._stopping.is_set():
            try:
                moved = worker.ready() and self._deliver(worker)
            except Exception as error:
                self._once.say(f"{worker.name} {type(error).__name__}", f"exporter {worker.name}: {error!r}")
                moved = False
            if moved:
                self._tell(self._progress)
            else:
                with self._news:
                    self._news.wait(TICK)

    @staticmethod
    def _tell(condition: threading.Condition) -> None:
        with condition:
            condition.notify_all()

    def _deliver(self, worker: ExporterWorker) -> bool:
        moved = False
        for outbox in self._outboxes():
            if not outbox.wants(worker.key):
                continue
            spans, after = outbox.batch(worker.key)
            if spans and not worker.deliver(spans):
                return moved
            outbox.passed(worker.key, after)
            moved = moved or bool(spans)
        return moved
