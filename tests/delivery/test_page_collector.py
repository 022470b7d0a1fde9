"""The page collector: woken early, with few system calls, and cheap while the disk is full."""

from __future__ import annotations

import math
import threading

import pytest

from ckpt_observe.config import DISK_LIMIT
from ckpt_observe.delivery import delivery as deliveries
from ckpt_observe.delivery.daemon import Daemon
from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.handover import Handover
from ckpt_observe.delivery.page_collector import PageCollector
from ckpt_observe.journal import spool
from ckpt_observe.journal.journal import Journal
from tests.delivery.conftest import FakeExporter, record_operation, until

FULL = OSError(28, "No space left on device")


@pytest.fixture
def journal(state, tmp_path):
    journal = Journal(state, tmp_path / "pages", ["fake"], {})
    yield journal
    journal.remove()


def test_collects_early_if_pages_run_short(start_delivery, monkeypatch):
    """The collecting thread does not wait for its next pass if more than half of the pages are in use; then there are more pages."""
    monkeypatch.setattr(deliveries, "POLL_INTERVAL", 1000.0)
    exporter = FakeExporter()
    journal, _ = start_delivery(exporter)
    pages = journal.pool._page_count()
    for number in range(pages // 2 + 1):
        record_operation(journal, str(number))
    until(lambda: len(exporter.ids) >= pages // 2)
    assert journal.pool.counts["grown"] == 0


def test_full_disk_is_tried_with_one_record(journal, monkeypatch):
    """After a failed pass, single records are tried until the disk accepts one. Nothing is lost."""
    write, sizes = journal.pool._spill, []

    def spill(records):
        sizes.append(len(records))
        if len(sizes) < 3:
            raise FULL
        write(records)

    monkeypatch.setattr(journal.pool, "_spill", spill)
    collector = PageCollector(journal, lambda: None)
    for number in range(10):
        record_operation(journal, str(number))
    assert [collector.collect() for _ in range(5)] == [0, 0, 1, 9, 0]
    assert sizes == [10, 1, 1, 9]


def test_flush_waits_for_a_pass_under_way(journal):
    """A flush does not end before operations that another thread has taken from the pages are in the spool."""
    is_taken, may_write = threading.Event(), threading.Event()

    def annotate(records):
        is_taken.set()
        may_write.wait(20)
        return records

    collector = PageCollector(journal, lambda: None, annotate)
    record_operation(journal, "1")
    collecting = threading.Thread(target=collector.collect)
    collecting.start()
    is_taken.wait(20)
    flushing = threading.Thread(target=collector.collect_all, args=(math.inf,))
    flushing.start()
    flushing.join(0.2)  # too early if it has ended
    assert flushing.is_alive()
    may_write.set()
    flushing.join(20)
    assert len(list(spool.read_all(journal.directory))) == 1
    collecting.join(20)


@pytest.fixture
def busy_program(monkeypatch):
    """`busy_program(journal)` makes a program finish an operation during each write to its spool. It returns the sizes of the writes."""

    def start(journal):
        write, sizes = journal.pool._spill, []

        def spill(records):
            sizes.append(len(records))
            write(records)
            if len(sizes) < 100:  # without the fix, it would never end
                record_operation(journal, "meanwhile")

        monkeypatch.setattr(journal.pool, "_spill", spill)
        for number in range(3):
            record_operation(journal, str(number))
        return sizes

    return start


def test_flush_of_a_program_that_saves(start_delivery, busy_program):
    """A flush, and so the exit of a program, ends although other threads save faster than their operations are collected."""
    journal, delivery = start_delivery(FakeExporter(), with_threads=False)
    sizes = busy_program(journal)
    assert not delivery.flush(60)
    assert sizes == [3]


def test_flush_of_a_program_that_saves_for_a_daemon(state, tmp_path, busy_program):
    """The same if another process delivers."""
    journal = Journal(state, tmp_path / "pages", (), {}, "daemon")
    sizes = busy_program(journal)
    handover = Handover(journal, Daemon(state, journal), DiskLimit(state, DISK_LIMIT), dict, lambda: False)
    assert not handover.flush(0)
    assert sizes == [3]
    handover.close(0)


def test_disk_limit_is_enforced_once_for_each_segment(journal, monkeypatch):
    """The disk limit is enforced when a segment is complete, not after each write, and again if that failed."""
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 1000)
    calls = []

    def enforce():
        calls.append(journal.spool.segment)
        if len(calls) == 1:
            raise FULL

    collector = PageCollector(journal, enforce)
    for size in (10, 10, 1000, 10, 10, 1000, 10):
        record_operation(journal, "a", size=size)
        collector.collect()
    assert calls == [2, 2, 3]
