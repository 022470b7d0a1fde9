"""The drain: one thread collects what was recorded into the spool and adopts what dead processes left; one thread for each sink delivers.

So a sink that is down delays no other, and none of them delays the collecting.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ckpt_observe.drain.delivery import Delivery, Sink, identity
from ckpt_observe.drain.outbox import Outbox
from ckpt_observe.drain.steps import History, Steps
from ckpt_observe.errors import JournalError
from ckpt_observe.journal import recovery
from ckpt_observe.journal.journal import JOURNALS, UNFINISHED, Journal
from ckpt_observe.journal.recovery import Claim
from ckpt_observe.semconv import metrics

logger = logging.getLogger("ckpt_observe")

TICK: Final = 0.1
"""Seconds between two looks at the pages; 768 ended operations may wait in between."""
SYNC_EVERY: Final = 1.0
"""Seconds: what is recorded survives the machine after at most this long."""
CLAIM_EVERY: Final = 2.0
"""Seconds between two looks for dead processes; more where there are hundreds of live ones, for each is asked."""


class Drain:
    """Drains a journal of this process, if it has one, and every dead one in the state directory."""

    def __init__(self, state: Path, sinks: Sequence[Sink], journal: Journal | None = None, history: History = lambda _task: None) -> None:
        self._state, self._journal = state, journal
        self._noted = Steps(history, self.adopt).noted
        if journal is not None:
            journal.pool.noted = self._noted
        self._deliveries = [Delivery(sink) for sink in sinks]
        self._names = tuple(delivery.key for delivery in self._deliveries)
        self._passing = tuple(identity(sink) for sink in sinks if not sink.lasting)
        self._adopted: dict[str, tuple[Outbox, Claim]] = {}
        self._own = Outbox(journal.directory, journal.about.resource, self._names) if journal else None
        self._news = threading.Condition()
        """For the sinks: something is in the spool."""
        self._progress = threading.Condition()
        """For who flushes: a sink has had something."""
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._collecting = threading.RLock()
        """Held while records move to the spool or a dead journal is taken over: `flush` must not look in between."""
        self._left_alone: set[str] = set()
        self._told: set[str] = set()
        self.interrupted = 0
        """Operations of dead processes that were reported."""

    def start(self) -> None:
        work: list[tuple[str, Callable[..., None], tuple[Delivery, ...]]] = [("collect", self._collect_forever, ())]
        work += [(f"sink-{each.name}", self._deliver_forever, (each,)) for each in self._deliveries]
        self._threads = [threading.Thread(target=run, args=args, name=f"ckpt-observe-{name}", daemon=True) for name, run, args in work]
        for thread in self._threads:
            thread.start()

    def flush(self, timeout: float = 5.0) -> bool:
        """Bring everything recorded so far to every sink; whether that was done in time."""
        deadline = time.monotonic() + timeout
        while self._collect():
            pass
        self.adopt()
        for delivery in self._deliveries:
            delivery.hurry()
        self._tell(self._news)
        with self._progress:
            while self._pending():
                left = deadline - time.monotonic()
                if left <= 0 or not any(thread.is_alive() for thread in self._threads[1:]):
                    return False
                self._progress.wait(min(left, TICK))
        return True

    def close(self, timeout: float = 2.0) -> bool:
        """Flush, stop, and leave what could not be delivered to whoever comes next; whether all was delivered."""
        if self._stopping.is_set():
            return not self._pending()
        deadline = time.monotonic() + timeout
        self.flush(timeout)
        self._stopping.set()
        self._tell(self._news)
        for thread in self._threads:
            thread.join(max(0.0, deadline + TICK - time.monotonic()))
        stopped = not any(thread.is_alive() for thread in self._threads)
        if stopped:
            self._collect()  # what ended while we flushed: it stays in the spool, and is not forgotten
        done = not self._pending()
        for outbox, claim in list(self._adopted.values()):
            self._let_go(outbox, claim)
        if self._journal is not None:
            if done and stopped and not self._journal.pool.busy():
                self._journal.remove()
            else:
                self._journal.release()
        if stopped:  # a sink that hangs is left to the end of the process
            for delivery in self._deliveries:
                delivery.sink.close()
        return done

    def health(self) -> dict[tuple[str, tuple[str, ...]], float]:
        """Counters of this drain and its journal, by metric and labels."""
        found: Counter[tuple[str, tuple[str, ...]]] = Counter()
        pool = self._journal.pool.counts if self._journal else {}
        for event in metrics.RECORD_EVENTS:
            found[metrics.RECORDS.name, (event,)] += pool.get(event, 0)
        for reason in metrics.DROP_REASONS:
            found[metrics.DROPPED.name, (reason,)] += pool.get(reason, 0)
        for outbox in self._outboxes():
            for kind, count in list(outbox.counts.items()):
                reason = "overflow" if kind.startswith("dropped ") else kind
                if reason in metrics.DROP_REASONS:
                    found[metrics.DROPPED.name, (reason,)] += count
        for each in self._deliveries:
            for spec, count in ((metrics.DELIVERED, each.delivered), (metrics.REFUSED, each.refused), (metrics.RETRIES, each.retries)):
                found[spec.name, (each.name,)] += count
        return dict(found)

    # collecting

    def _collect_forever(self) -> None:
        synced = claimed = 0.0
        while not self._stopping.is_set():
            now = time.monotonic()
            try:
                self._collect()
                if now - synced >= SYNC_EVERY:
                    synced = now
                    self._sync()
                if now - claimed >= max(CLAIM_EVERY, self._crowd() / 10):
                    claimed = now
                    self.adopt()
                    self._let_go_delivered()
            except Exception as error:  # whatever it is, the next round may go better; a thread that ended would lose everything
                self._say(repr(error), f"a fault of its own while collecting: {error!r}")
            self._stopping.wait(TICK)

    def _collect(self) -> bool:
        """Whether anything was moved to the spool."""
        journal, own = self._journal, self._own
        if journal is None or own is None:
            return False
        try:
            with self._collecting:
                journal.pool.beat(time.time_ns())
                journal.pool.make_room()
                moved = journal.pool.collect()
                if moved:
                    own.keep_within_limit()
            if moved:
                self._tell(self._news)
        except OSError as error:  # a full or vanished disk: the pages hold what they can, the rest is counted
            self._say("spool", f"{journal.directory}: {error.strerror}; records wait in memory")
            return False
        return bool(moved)

    def _sync(self) -> None:
        if self._journal is not None:
            try:
                self._journal.spool.sync()
                self._journal.save_open()
            except OSError as error:
                self._say("sync", f"{self._journal.directory}: {error.strerror}; records would not survive the machine")

    def _say(self, kind: str, trouble: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            logger.warning("ckpt_observe: %s", trouble)

    # adopting

    def _crowd(self) -> int:
        try:
            return len(os.listdir(self._state / JOURNALS))
        except OSError:
            return 0

    def adopt(self) -> None:
        """Claim the journals of dead processes and finish what they began."""
        try:
            found = sorted(entry.path for entry in os.scandir(self._state / JOURNALS))
        except OSError:
            return
        recovery.sweep(path for path in found if path.endswith(UNFINISHED))
        own = self._journal.directory if self._journal else ""
        for directory in found:
            known = directory == own or directory in self._adopted or directory in self._left_alone
            if not known and not directory.endswith(UNFINISHED):
                try:
                    with self._collecting:
                        self._adopt(directory)
                except JournalError as error:  # damaged, or of a newer version: not ours to touch
                    self._left_alone.add(directory)
                    self._say(directory, str(error))
                except OSError as error:  # a full disk may have room later
                    self._say(directory, f"{directory}: cannot be taken over yet: {error}")

    def _adopt(self, directory: str) -> None:
        claim = recovery.claim(directory)
        if claim is None:
            return
        try:
            interrupted = recovery.recover(claim, self._noted)
        except BaseException:
            claim.release()
            raise
        self.interrupted += interrupted
        outbox = Outbox(directory, claim.about.resource, {*claim.about.sinks, *self._passing})
        self._adopted[directory] = (outbox, claim)
        self._tell(self._news)

    def _let_go_delivered(self) -> None:
        """A dead journal is held only as long as we can do something for it: it takes two descriptors of the host's."""
        for outbox, claim in list(self._adopted.values()):
            if not any(outbox.batch(name)[0] for name in self._names if outbox.wants(name)):
                if outbox.pending():  # for sinks that only others have
                    self._left_alone.add(outbox.directory)
                self._let_go(outbox, claim)

    def _let_go(self, outbox: Outbox, claim: Claim) -> None:
        if not outbox.pending():  # for the sinks of its owner, of which we may not have all
            shutil.rmtree(outbox.directory, ignore_errors=True)
        claim.release()
        self._adopted.pop(outbox.directory, None)

    # delivering

    def _outboxes(self) -> list[Outbox]:
        return ([self._own] if self._own else []) + [outbox for outbox, _ in list(self._adopted.values())]

    def _pending(self) -> bool:
        """Whether something was recorded that a sink of ours has not had."""
        if self._journal is not None and self._journal.pool.waiting():
            return True
        try:
            return any(outbox.batch(name)[0] for outbox in self._outboxes() for name in self._names if outbox.wants(name))
        except OSError:  # it is there, and cannot be read now
            return True

    def _deliver_forever(self, delivery: Delivery) -> None:
        while not self._stopping.is_set():
            try:
                moved = delivery.ready() and self._deliver(delivery)
            except Exception as error:
                self._say(f"{delivery.name} {error!r}", f"sink {delivery.name}: {error!r}")
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

    def _deliver(self, delivery: Delivery) -> bool:
        moved = False
        for outbox in self._outboxes():
            if not outbox.wants(delivery.key):
                continue
            spans, after = outbox.batch(delivery.key)
            if spans and not delivery.deliver(spans):
                return moved
            outbox.passed(delivery.key, after)
            moved = moved or bool(spans)
        return moved
