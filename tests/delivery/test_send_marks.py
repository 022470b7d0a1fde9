"""A backend that stores every copy gets each span once, although processes die while they send, and nobody waits without a reason."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.send_marks import SENDING, SendMarks
from ckpt_observe.errors import ExporterRetryError, ExporterUnclearError
from ckpt_observe.journal.directory import About
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.spool import Cursor
from ckpt_observe.semconv import attributes as names
from tests.delivery.conftest import FakeExporter, record_operation, until

LONG_AGO = 1_000_000_000


class CopyKeeper(FakeExporter):
    """Stands in for an exporter to a backend that stores every copy. `stored` is what the backend has."""

    settle_seconds = 5.0

    def __init__(self, stored):
        super().__init__("keeper")
        self.stored, self.failure = stored, None
        self.doubts = []

    def doubt(self, spans):
        self.doubts += [span.attributes[names.ID] for span in spans]

    def may_have(self, spans):
        return isinstance(self.failure, ExporterUnclearError)

    def send(self, spans):
        self.send_started.set()
        if self.failure:
            raise self.failure
        stored = set(self.stored) & set(self.doubts)
        self.stored += [key for span in spans if (key := span.attributes[names.ID]) not in stored]


@pytest.fixture
def leave_journal(state, tmp_path):
    """`leave_journal(key, failure)` leaves the journal of a process whose attempt to send failed, and returns the path of its mark."""

    def leave(key, failure):
        journal = Journal(state, tmp_path / "pages", ["keeper"], {})
        record_operation(journal, key)
        exporter = CopyKeeper([])
        exporter.failure = failure
        delivery = Delivery(state, [exporter], journal)
        delivery._collect()
        delivery._deliver(delivery.workers[0])
        delivery.workers[0].close()
        delivery._journal.release()
        return Path(journal.directory, SENDING)

    return leave


def deliver(state, exporter):
    """Deliver what other processes left, as a program does that ends at once. Return whether it was all delivered."""
    delivery = Delivery(state, [exporter])
    delivery.start()
    delivery.close(20)
    return list((state / "journals").iterdir()) == []


def test_process_that_did_not_reach_the_server(state, leave_journal):
    """If the server surely has nothing, the next process sends at once and does not ask."""
    leave_journal("a", ExporterRetryError("connection refused"))
    exporter = CopyKeeper([])
    assert deliver(state, exporter)
    assert (exporter.stored, exporter.doubts) == (["a"], [])


def test_process_that_died_while_sending(state, leave_journal):
    """What may have been sent is asked for once the server knows; a process that ends earlier neither waits nor sends."""
    mark = leave_journal("a", ExporterUnclearError("cut"))
    exporter = CopyKeeper(["a"])
    assert not deliver(state, exporter)
    assert (exporter.stored, exporter.doubts) == (["a"], [])
    os.utime(mark, (LONG_AGO, LONG_AGO))
    assert deliver(state, exporter)
    assert (exporter.stored, exporter.doubts) == (["a"], ["a"])


def test_short_processes_do_not_prolong_the_wait(state, leave_journal):
    """The time counts from the last sign of life of the process that sent, however many look at its journal."""
    mark = leave_journal("a", ExporterUnclearError("cut"))
    before = mark.stat().st_mtime_ns
    for _ in range(3):
        deliver(state, CopyKeeper([]))
    assert mark.stat().st_mtime_ns == before


def test_waiting_journals_delay_no_other(state, leave_journal):
    """While one journal waits, those of other processes are delivered; the wait is no failure of the exporter."""
    leave_journal("a", ExporterUnclearError("cut"))
    for number in range(20):
        leave_journal(f"b{number}", ExporterRetryError("connection refused"))
    exporter = CopyKeeper([])
    delivery = Delivery(state, [exporter])
    delivery.start()
    until(lambda: len(exporter.stored) >= 20)
    delivery.close(20)
    assert sorted(exporter.stored) == sorted(f"b{number}" for number in range(20))
    assert (delivery.workers[0].retries, delivery.workers[0].last_error) == (0, None)


def test_delivered_batch_leaves_no_doubt(state, tmp_path):
    """A process that dies after it has moved its cursor leaves nothing to ask for, although its mark is still there."""
    journal = Journal(state, tmp_path / "pages", ["keeper"], {})
    record_operation(journal, "a")
    delivery = Delivery(state, [CopyKeeper([])], journal)
    delivery._collect()
    assert delivery._deliver(delivery.workers[0])
    record_operation(journal, "b")
    delivery._collect()
    assert Path(journal.directory, SENDING).exists()
    journal.release()
    exporter = CopyKeeper([])
    assert deliver(state, exporter)
    assert (exporter.stored, exporter.doubts) == (["b"], [])


def test_small_batches(state, tmp_path):
    """A backend that stores every copy gets small batches, so that little is in doubt when a program ends; others get large ones."""
    journal = Journal(state, tmp_path / "pages", ["keeper", "fake"], {})
    for number in range(500):
        record_operation(journal, str(number), size=500)
    delivery = Delivery(state, [CopyKeeper([]), FakeExporter()], journal)
    delivery._collect()
    for worker in delivery.workers:
        delivery._deliver(worker)
    small, large = (worker.delivered for worker in delivery.workers)
    assert 0 < small < 200
    assert large == 500
    journal.release()
    delivery._save_index.close()


def test_restart_of_the_machine(state, leave_journal):
    """After a restart of the machine, marks and cursors may be old: every batch is asked for, without waiting."""
    mark = leave_journal("a", ExporterRetryError("connection refused"))
    about = mark.parent / "about.json"
    about.write_bytes(msgspec.structs.replace(msgspec.json.decode(about.read_bytes(), type=About), boot="another").encode())
    exporter = CopyKeeper(["a"])
    assert deliver(state, exporter)
    assert (exporter.stored, exporter.doubts) == (["a"], ["a"])


def test_last_sign_of_life(tmp_path):
    """The time of the mark is renewed while a request is under way, and only then."""
    marks = SendMarks(str(tmp_path))
    marks.begin("keeper", Cursor(1, 0))
    os.utime(tmp_path / SENDING, (LONG_AGO, LONG_AGO))
    marks.renew()
    assert SendMarks(str(tmp_path)).last_attempt("keeper", Cursor(1, 0)) > LONG_AGO
    marks.end("keeper", may_have_arrived=True)
    os.utime(tmp_path / SENDING, (LONG_AGO, LONG_AGO))
    marks.renew()
    assert SendMarks(str(tmp_path)).last_attempt("keeper", Cursor(1, 0)) == LONG_AGO


@pytest.mark.parametrize("content", [b"", b"[]", b'{"keeper": [1]}', b'{"keeper": [-1, 0]}', b"\xff"])
def test_damaged_marks(tmp_path, content):
    """A damaged file is moved aside and counts as empty."""
    (tmp_path / SENDING).write_bytes(content)
    assert SendMarks(str(tmp_path)).last_attempt("keeper", Cursor(1, 0)) is None
    assert not (tmp_path / SENDING).exists()
