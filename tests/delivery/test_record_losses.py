"""Every damaged or removed record is counted once: what was recorded is delivered or counted, exactly."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpt_observe.delivery import outbox as module
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.handover import Handover
from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.journal import spool
from ckpt_observe.journal.journal import Journal
from ckpt_observe.semconv import metrics
from tests.delivery.conftest import FakeExporter, record_operation

CORRUPT = metrics.DROPPED_RECORDS.name, ("corrupt",)
UNKNOWN = metrics.DROPPED_RECORDS.name, ("unknown",)


@pytest.fixture
def journal(state, tmp_path):
    journal = Journal(state, tmp_path / "pages", ["fast", "slow"], {})
    yield journal
    journal.release()


def record(journal, first, last):
    for number in range(first, last):
        record_operation(journal, str(number))
    journal.pool.collect()


def damage(journal):
    journal.spool.append([b'[["from the future"]]'])
    with open(spool.segment_path(journal.directory, 1), "ab") as file:
        file.write(b"00000000 [damaged]\n")


def deliver_all(outbox, exporter):
    """Deliver everything to one exporter. Return the number of spans."""
    total = 0
    while (batch := outbox.next_batch(exporter))[1] != outbox.position(exporter):
        total += len(batch[0])
        outbox.advance(exporter, batch[1])
    return total


def test_two_exporters_at_different_positions(journal, monkeypatch):
    """A damaged record is counted once, although one exporter reads it first, often, and another one much later in other batches."""
    monkeypatch.setattr(module, "SMALL_BATCH", 700)
    outbox = Outbox(journal.directory, {}, ["fast", "slow"], small_batches=["slow"])
    for start in (0, 10, 20):
        record(journal, start, start + 10)
        damage(journal)
        outbox.next_batch("slow")
        for exporter in ("fast", "slow"):
            outbox.next_batch(exporter)
        if start == 10:
            spans, after = outbox.next_batch("slow")
            outbox.advance("slow", after)
    assert outbox.health() == {}
    assert deliver_all(outbox, "fast") == 30
    assert deliver_all(outbox, "slow") == 30 - len(spans)
    assert (outbox.health()[CORRUPT], outbox.health()[UNKNOWN]) == (3, 3)


def test_next_process_does_not_count_again(journal):
    """What one process has counted, the next one does not count, although an exporter still has to receive that part."""
    record(journal, 0, 10)
    damage(journal)
    first, second = (Outbox(journal.directory, {}, ["fast", "slow"]) for _ in range(2))
    deliver_all(first, "fast")
    second = Outbox(journal.directory, {}, ["fast", "slow"])
    assert deliver_all(second, "slow") == 10
    assert (first.health()[CORRUPT], second.health().get(CORRUPT, 0)) == (1, 0)


def test_damaged_records_of_dropped_segments(journal):
    """If segments are dropped because of the limit, their damaged records are counted, too."""
    record(journal, 0, 10)
    damage(journal)
    journal.spool.close()
    record(journal, 10, 20)
    outbox = Outbox(journal.directory, {}, ["fast"])
    assert outbox.shrink(0, keep=1)
    assert deliver_all(outbox, "fast") == 10
    assert (outbox.counts["dropped fast"], outbox.health()[CORRUPT]) == (11, 1)  # one of the dropped ones could not be understood


@pytest.mark.parametrize("rest", [None, 0, 1000, 2500])
def test_truncated_or_removed_spool(state, journal, rest):
    """Records in a part of the spool that somebody cut off or (None) removed are counted, except those that were delivered before."""
    exporter = FakeExporter("fast")
    delivery = Delivery(state, [exporter], journal)
    record(journal, 0, 10)
    delivery._deliver(delivery.workers[0])
    record(journal, 10, 50)
    path = spool.segment_path(journal.directory, 1)
    os.unlink(path) if rest is None else os.truncate(path, rest)
    delivery._sync()
    record(journal, 50, 60)
    for _ in range(3):
        delivery._deliver(delivery.workers[0])
    assert len(exporter.ids) == len(set(exporter.ids))
    assert len(exporter.ids) + delivery.health()[CORRUPT] == 60
    assert delivery.health()[CORRUPT] > 30 if not rest else delivery.health()[CORRUPT] > 0


def test_batch_that_was_read_before_it_was_removed(state, journal):
    """A batch that waits in memory is delivered although somebody removed it on disk, and is not counted."""
    exporter = FakeExporter("fast")
    exporter.down = True
    delivery = Delivery(state, [exporter], journal)
    record(journal, 0, 10)
    delivery._deliver(delivery.workers[0])
    os.truncate(spool.segment_path(journal.directory, 1), 0)
    delivery._sync()
    assert delivery.health()[CORRUPT] == 10
    exporter.down = False
    delivery._deliver(delivery.workers[0])
    assert (len(exporter.ids), delivery.health()[CORRUPT]) == (10, 0)


class Nobody:
    """Stands in for a companion or daemon."""

    def check(self):
        return True

    def close(self, timeout):
        pass


def test_truncated_spool_that_another_process_delivers(state, tmp_path):
    """The owner counts what was cut off, and not what the other process had delivered."""
    journal = Journal(state, tmp_path / "pages", ["fast"], {}, "companion")
    handover = Handover(journal, Nobody(), DiskLimit(state, 1 << 30), dict, lambda: False)
    record(journal, 0, 10)
    outbox = Outbox(journal.directory, {}, ["fast"])
    delivered = deliver_all(outbox, "fast")
    record(journal, 10, 50)
    os.truncate(spool.segment_path(journal.directory, 1), 0)
    handover._sync()
    record(journal, 50, 60)
    delivered += deliver_all(outbox, "fast")
    assert (delivered, handover.health()[CORRUPT]) == (20, 40)
    assert Path(journal.directory, "counts.json").exists()
    journal.release()
