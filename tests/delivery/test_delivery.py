"""Delivery brings every record to every exporter; none delays another, and nothing is lost at exit or on a full disk."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from ckpt_observe.delivery import delivery as deliveries
from ckpt_observe.delivery import outbox as outboxes
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.errors import ExporterRetryError, ExporterUnclearError
from ckpt_observe.journal import recovery, spool
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.spool import Cursor
from ckpt_observe.testing.spans import make_span
from tests.delivery.conftest import FakeExporter, record_operation, remove, until
from tests.record.interruptions import interrupt_everywhere


def test_everything_arrives(start_delivery, state):
    """Every operation reaches every exporter in order. After `close()` nothing remains on disk."""
    exporters = FakeExporter("a"), FakeExporter("b")
    journal, delivery = start_delivery(*exporters)
    keys = [str(number) for number in range(300)]
    for key in keys:
        record_operation(journal, key)
    assert delivery.close(60)
    assert exporters[0].ids == exporters[1].ids == keys
    assert [exporter.close_count for exporter in exporters] == [1, 1]
    assert list((state / "journals").iterdir()) == []


def test_arrives_without_flush(start_delivery):
    """The threads deliver without being asked."""
    exporter = FakeExporter()
    journal, _ = start_delivery(exporter)
    record_operation(journal, "a")
    until(lambda: exporter.ids == ["a"])


def test_flush(start_delivery):
    """If `flush()` returns True, the exporter has everything recorded before. It may be called at any time."""
    exporter = FakeExporter()
    journal, delivery = start_delivery(exporter)
    assert delivery.flush(60)
    for number in range(20):
        record_operation(journal, str(number))
        assert delivery.flush(60)
        assert exporter.ids[-1] == str(number)


def test_exporters_rest_after_an_interrupted_flush(start_delivery):
    """A signal handler of the host program that raises during a flush does not leave the exporters without a rest."""
    _, delivery = start_delivery(FakeExporter())

    def end_rest():
        with delivery._without_rest():
            assert delivery._flushes

    for place, reached in interrupt_everywhere(end_rest):
        assert reached, f"swallowed at {place}"
        assert not delivery._flushes, place


def test_exporter_rests_after_a_batch(start_delivery, monkeypatch):
    """The first operation is delivered at once. Those that follow while the exporter rests are one batch; `flush()` ends the rest."""
    monkeypatch.setattr(deliveries, "REST_INTERVAL", 3600.0)
    exporter = FakeExporter()
    journal, delivery = start_delivery(exporter)
    record_operation(journal, "a")
    until(lambda: exporter.ids == ["a"])
    for key in ("b", "c"):
        record_operation(journal, key)
        until(lambda: not journal.pool.has_uncollected())
    assert exporter.ids == ["a"]
    assert delivery.flush(60)
    assert (exporter.ids, exporter.batch_sizes) == (["a", "b", "c"], [1, 2])


def test_exporter_does_not_rest_while_much_is_waiting(start_delivery, monkeypatch):
    """As long as more than half a batch is waiting, the next batch follows at once, so that a backlog is delivered as fast as possible."""
    monkeypatch.setattr(deliveries, "REST_INTERVAL", 3600.0)
    monkeypatch.setattr(outboxes, "BATCH", 1)  # a batch is one record
    exporter = FakeExporter()
    journal, delivery = start_delivery(exporter, with_threads=False)
    for key in ("a", "b", "c"):
        record_operation(journal, key)
    journal.pool.collect()
    delivery.start()
    until(lambda: exporter.ids == ["a", "b", "c"])
    assert exporter.batch_sizes == [1, 1, 1]


def test_exporter_rests_longer_after_a_large_batch(start_delivery, monkeypatch):
    """After a batch with many spans, the exporter waits for LONG_REST_INTERVAL."""
    monkeypatch.setattr(deliveries, "REST_INTERVAL", 0.0)
    monkeypatch.setattr(deliveries, "LONG_REST_INTERVAL", 3600.0)
    monkeypatch.setattr(deliveries, "LARGE_BATCH", 2)
    exporter = FakeExporter()
    journal, delivery = start_delivery(exporter, with_threads=False)
    record_operation(journal, "a")
    record_operation(journal, "b")
    journal.pool.collect()
    delivery.start()
    until(lambda: exporter.ids == ["a", "b"])
    for key in ("c", "d"):
        record_operation(journal, key)
        until(lambda: not journal.pool.has_uncollected())
    assert delivery.flush(60)
    assert exporter.batch_sizes == [2, 2]


def test_slower_exporter_gets_the_same_batches(state, tmp_path, monkeypatch):
    """Each record is assembled once, also if one exporter is batches behind the other."""
    assembled = []
    monkeypatch.setattr(outboxes, "assemble", lambda record, *_, **__: assembled.append(record) or [make_span(len(assembled), "x")])
    journal = Journal(state, tmp_path / "pages", ["fast", "slow"], {})
    outbox = Outbox(journal.directory, {}, ["fast", "slow"])
    batches = {"fast": [], "slow": []}
    for exporter, round_count in (("fast", 3), ("slow", 3)):
        for number in range(round_count):
            if exporter == "fast":
                record_operation(journal, str(number))
                journal.pool.collect()
            spans, after = outbox.next_batch(exporter)
            batches[exporter].append(spans)
            outbox.advance(exporter, after)
    journal.remove()
    assert batches["fast"] == batches["slow"]
    assert len(assembled) == 3


def test_flush_while_an_exporter_is_down(start_delivery):
    """`flush()` returns False on timeout, and what was not delivered is kept."""
    exporter = FakeExporter()
    journal, delivery = start_delivery(exporter)
    exporter.down = True
    record_operation(journal, "a")
    assert delivery.flush(0.2) is False
    exporter.down = False
    assert delivery.flush(60)
    assert exporter.ids == ["a"]


def test_one_down_delays_no_other(start_delivery):
    """If one exporter is down, one raises and one hangs, the fourth still gets everything at once."""
    down, raising, hanging, healthy = (FakeExporter(name) for name in ("down", "raising", "hanging", "healthy"))
    down.down, raising.broken, hanging.hang = True, RuntimeError("bug"), threading.Event()
    journal, delivery = start_delivery(down, raising, hanging, healthy)
    for number in range(50):
        record_operation(journal, str(number))
    until(lambda: len(healthy.ids) == 50)
    assert hanging.send_started.wait(20)
    start = time.monotonic()
    assert delivery.close(0.3) is False
    assert time.monotonic() - start < 20, "close() is bounded although an exporter hangs"
    assert Path(journal.directory).exists(), "the next process delivers it"
    hanging.hang.set()
    for thread in delivery._threads:
        thread.join(20)


def test_after_a_restart(start_delivery, state):
    """The next process delivers to each exporter only what it has not received."""
    healthy, down = FakeExporter("healthy"), FakeExporter("down")
    down.down = True
    journal, delivery = start_delivery(healthy, down)
    record_operation(journal, "a")
    until(lambda: healthy.ids == ["a"])
    until(lambda: os.path.exists(os.path.join(journal.directory, "cursors.json")))
    assert delivery.close(0.3) is False
    later_healthy, later_down = FakeExporter("healthy"), FakeExporter("down")
    _, later = start_delivery(later_healthy, later_down, with_journal=False)
    assert later.close(60)
    assert (later_healthy.ids, later_down.ids) == ([], ["a"])
    assert list((state / "journals").iterdir()) == []


def test_journal_of_an_exporter_that_we_do_not_have(start_delivery, state):
    """A journal for an exporter that this process does not have is kept for a process that has it."""
    down = FakeExporter("down")
    down.down = True
    journal, delivery = start_delivery(down)
    record_operation(journal, "a")
    delivery.close(0.2)
    _, other = start_delivery(FakeExporter("other"), with_journal=False)
    assert other.close(60)
    assert Path(journal.directory).exists()
    right = FakeExporter("down")
    _, later = start_delivery(right, with_journal=False)
    assert later.close(60)
    assert right.ids == ["a"]


def test_operations_that_finish_during_close(start_delivery):
    """Operations that finish during `close()` are delivered now or by the next process."""
    keys, stop = [], threading.Event()
    exporter = FakeExporter()
    journal, delivery = start_delivery(exporter)

    def work():
        while not stop.is_set():
            record_operation(journal, str(len(keys)))
            keys.append(str(len(keys)))

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: len(exporter.ids) > 50)
    stop.set()
    delivery.close(20)
    thread.join(20)
    later_exporter = FakeExporter()
    _, later = start_delivery(later_exporter, with_journal=False)
    assert later.close(60)
    assert set(exporter.ids) | set(later_exporter.ids) >= set(keys[:-1])


@pytest.fixture
def small_spool(monkeypatch):
    monkeypatch.setattr(outboxes, "SPOOL_LIMIT", 20_000)
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 4_000)


def test_spool_limit(start_delivery, small_spool, monkeypatch):
    """An exporter that is down for too long loses the oldest records. Delivered plus dropped is exactly what was recorded, and disk use is bounded."""
    monkeypatch.setattr(deliveries, "REST_INTERVAL", 0.0)  # the healthy exporter gets 20 batches
    down, healthy = FakeExporter("down"), FakeExporter("healthy")
    down.down = True
    journal, delivery = start_delivery(down, healthy)
    for number in range(200):
        record_operation(journal, str(number), size=500)
        if number % 10 == 9:  # the other exporter keeps up
            until(lambda: len(healthy.ids) == number + 1)  # noqa: B023 - evaluated at once
    assert spool.size(journal.directory) <= 20_000 + 4_000 + 30_000, "the limit, a segment, and the records of one pass"
    down.down = False
    assert delivery.flush(60)
    counts = delivery._outbox.counts
    assert 0 < len(down.ids) < 200
    assert len(down.ids) + counts["dropped down"] == 200
    assert counts["dropped healthy"] == 0
    assert down.ids[-20:] == [str(number) for number in range(180, 200)], "the newest are kept, and the batch that was tried"


def test_dropped_while_being_sent(start_delivery, small_spool):
    """Records that are dropped while an exporter is sending them, and are then delivered, do not count as lost."""
    slow = FakeExporter()
    journal, delivery = start_delivery(slow, with_threads=False)
    for number in range(5):
        record_operation(journal, str(number), size=500)
    journal.pool.collect()
    spans, after = delivery._outbox.next_batch("fake")
    assert len(spans) == 5
    for number in range(60):
        record_operation(journal, f"later {number}", size=500)
        journal.pool.collect()
    delivery._outbox.enforce_spool_limit()
    dropped = delivery._outbox.counts["dropped fake"]
    assert dropped >= 5
    delivery._outbox.advance("fake", after)
    assert delivery._outbox.counts["dropped fake"] == dropped - 5


class DroppedExporter(FakeExporter):
    """While it receives the first batch, the limit drops the batch. Then it answers with `answer`, or accepts the batch if that is None."""

    def __init__(self, answer=None):
        super().__init__()
        self.answer = answer
        self.drop = None

    def send(self, spans):
        super().send(spans)
        drop, self.drop = self.drop, None
        if drop:
            drop()
            if self.answer:
                raise self.answer


def record_more_than_fits(journal, delivery):
    for number in range(60):
        record_operation(journal, f"later {number}", size=500)
        journal.pool.collect()
    delivery._outbox.enforce_spool_limit()


@pytest.mark.parametrize("answer", [None, ExporterUnclearError("no answer"), ExporterRetryError("half of it was accepted")])
def test_dropped_with_any_answer(start_delivery, small_spool, answer):
    """Delivered plus dropped is what was recorded, even if a batch is dropped that arrived without an answer, and while `flush()` waits."""
    exporter = DroppedExporter(answer)
    journal, delivery = start_delivery(exporter, with_threads=False)
    for number in range(5):
        record_operation(journal, str(number), size=500)
    journal.pool.collect()

    def drop():
        record_more_than_fits(journal, delivery)
        assert delivery._outbox.counts["dropped fake"] > 5
        assert delivery.pending()  # asked by `flush()`

    exporter.drop = drop
    delivery.start()
    assert delivery.close(60)
    assert len(set(exporter.ids)) + delivery._outbox.counts["dropped fake"] == 65


def test_dropped_but_not_answered_until_exit(start_delivery, small_spool):
    """A batch that was dropped, and never answered, counts as dropped. The next process delivers the rest and removes the journal."""
    exporter = FakeExporter()
    exporter.down = True
    journal, delivery = start_delivery(exporter)
    record_operation(journal, "first", size=500)
    assert exporter.send_started.wait(20)
    for number in range(60):
        record_operation(journal, f"later {number}", size=500)
        journal.pool.collect()
    delivery._outbox.enforce_spool_limit()
    assert not delivery.close(0)
    dropped = delivery._outbox.counts["dropped fake"]
    later_exporter = FakeExporter()
    _, later = start_delivery(later_exporter, with_journal=False)
    assert later.close(60)
    assert len(later_exporter.ids) + dropped == 61
    assert not os.path.exists(journal.directory)


def test_full_disk(start_delivery, monkeypatch):
    """While the disk is full, operations wait in their pages. When there is room, all of them are delivered."""
    exporter = FakeExporter()
    journal, delivery = start_delivery(exporter)
    write = journal.pool._spill
    full = threading.Event()
    full.set()

    def spill(records):
        if full.is_set():
            raise OSError(28, "No space left on device")
        write(records)

    monkeypatch.setattr(journal.pool, "_spill", spill)
    for number in range(200):
        record_operation(journal, str(number))
    delivery.flush(0.1)
    assert exporter.ids == []
    full.clear()
    until(lambda: len(exporter.ids) == 200)
    assert journal.pool.counts["lost"] == 0


def test_unknown_and_corrupt_records_are_counted(start_delivery):
    """Damaged and unknown records are skipped and counted, and do not delay others."""
    exporter = FakeExporter()
    journal, delivery = start_delivery(exporter, with_threads=False)
    journal.spool.append([b'[["from the future"]]'])
    with open(spool.segment_path(journal.directory, 1), "ab") as file:
        file.write(b"00000000 [damaged]\n")
    record_operation(journal, "good")
    delivery.start()
    until(lambda: exporter.ids == ["good"])
    assert (delivery._outbox.counts["unknown"], delivery._outbox.counts["corrupt"]) == (1, 1)


def test_spool_removed_while_running(start_delivery):
    """If somebody removes the spool, its records are lost, and delivery continues."""
    exporter = FakeExporter()
    exporter.down = True
    journal, delivery = start_delivery(exporter)
    record_operation(journal, "gone")
    until(lambda: spool.segments(journal.directory))
    for number in spool.segments(journal.directory):
        os.unlink(spool.segment_path(journal.directory, number))
    exporter.down = False
    record_operation(journal, "after")
    until(lambda: "after" in exporter.ids)
    assert delivery.close(60)


def test_state_directory_removed_while_running(start_delivery, state):
    """If the whole state directory is removed, nothing is raised and `close()` returns."""
    journal, delivery = start_delivery(FakeExporter())
    record_operation(journal, "a")
    remove(state)
    record_operation(journal, "b")
    delivery.flush(0.2)
    delivery.close(0.5)


@pytest.mark.parametrize("saved", [b"", b"{", b'{"fake": [99, 0]}', b'{"fake": "x"}', b"[]"])
def test_damaged_cursors(tmp_path, saved):
    """Unreadable cursors start at the beginning. A cursor beyond the end of the spool finds nothing and raises nothing."""
    writer = spool.Spool(str(tmp_path))
    writer.append([b"[1]"])
    writer.close()
    (tmp_path / "cursors.json").write_bytes(saved)
    box = Outbox(str(tmp_path), {}, ["fake"])
    spans, after = box.next_batch("fake")
    assert spans == []
    assert after >= Cursor()


def test_newer_journal_is_left_alone(start_delivery, state, caplog):
    """A journal of a newer version is logged once, never touched, and does not delay others."""
    (state / "journals" / "1-1").mkdir(parents=True, mode=0o700)
    for name in ("owner.lock", "drain.lock"):
        (state / "journals" / "1-1" / name).touch()
    (state / "journals" / "1-1" / "about.json").write_text('{"version": 99}')
    state.chmod(0o700)
    (state / "journals").chmod(0o700)
    exporter = FakeExporter()
    journal, delivery = start_delivery(exporter)
    for key in ("a", "b"):
        record_operation(journal, key)
        assert delivery.flush(60)
    assert exporter.ids == ["a", "b"]
    assert len([entry for entry in caplog.records if "newer version" in entry.message]) == 1
    assert sorted(path.name for path in (state / "journals" / "1-1").iterdir()) == ["about.json", "drain.lock", "owner.lock"]


def test_adoption_is_retried(start_delivery, state, monkeypatch):
    """A journal that cannot be adopted because the disk is full is adopted when there is room."""
    down = FakeExporter()
    down.down = True
    journal, delivery = start_delivery(down)
    record_operation(journal, "a")
    delivery.close(0.2)
    exporter = FakeExporter()
    later = Delivery(state, [exporter])
    recover = recovery.recover

    def fail(claim, annotate):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(recovery, "recover", fail)
    later.adoption.scan()
    assert later.adoption.outboxes() == []
    monkeypatch.setattr(recovery, "recover", recover)
    later.start()
    assert later.close(60)
    assert exporter.ids == ["a"]


def test_unfinished_journal_is_removed(start_delivery, state):
    """A journal whose process died while creating it is removed when it is old, because a new one may still be in progress."""
    old, new = (state / "journals" / f"{number}-1.new" for number in range(2))
    for path in (old, new):
        path.mkdir(parents=True)
    for path in (state, state / "journals"):
        path.chmod(0o700)
    os.utime(old, (1, 1))
    _, delivery = start_delivery(FakeExporter(), with_journal=False)
    assert delivery.close(60)
    assert not old.exists()
    assert new.exists()


def test_closing_twice(start_delivery):
    """The second `close()` has no effect. In particular, it closes no descriptor that was reused meanwhile."""
    exporter = FakeExporter()
    journal, delivery = start_delivery(exporter)
    record_operation(journal, "a")
    assert delivery.close(60)
    other = os.open(os.devnull, os.O_RDONLY)
    assert delivery.close(60)
    journal.pool.close()
    os.close(other)  # raises if it was closed
    assert exporter.close_count == 1


def test_new_records_in_an_idle_spool(start_delivery):
    """An idle spool is checked without reading it. New records are delivered all the same."""
    exporter = FakeExporter()
    journal, delivery = start_delivery(exporter)
    for key in ("a", "b"):
        record_operation(journal, key)
        assert delivery.flush(60)
        os.utime(journal.directory, (1, 1))  # looks unchanged for a long time
        assert [delivery._outbox.next_batch("fake")[0] for _ in range(3)] == [[], [], []]
    assert exporter.ids == ["a", "b"]


def test_internal_error_is_logged_once(start_delivery, monkeypatch, caplog):
    """An internal error that repeats with other words does not fill the log of the host program."""
    errors = []
    _, delivery = start_delivery(FakeExporter(), with_threads=False)

    def fail():
        errors.append(ValueError(f"error {len(errors)}"))
        raise errors[-1]

    monkeypatch.setattr(delivery, "_collect", fail)
    delivery.start()
    until(lambda: len(errors) > 3)
    assert caplog.text.count("Internal error while collecting records") == 1
    monkeypatch.undo()
