"""Another process delivers: the same records reach the same exporters, once, whoever of the two ends first, and whether or not it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpt_observe.config import DISK_LIMIT
from ckpt_observe.delivery import daemon, disk_limit, handover
from ckpt_observe.delivery import outbox as outboxes
from ckpt_observe.delivery.daemon import Daemon
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.handover import Handover
from ckpt_observe.errors import DaemonRunningError
from ckpt_observe.journal import spool
from ckpt_observe.journal.journal import Journal
from ckpt_observe.record.encoding import encode_line
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, metrics
from tests.delivery.conftest import NOW, FakeExporter, record_operation, remove, until

FAULTS = (metrics.FAULTS.name, ())
OVERFLOW = (metrics.DROPPED_RECORDS.name, ("overflow",))


@pytest.fixture
def host(state, tmp_path):
    """`host()` gives a journal that a daemon is to deliver, and what stands for the delivery in its process."""
    made = []

    def make(faults=0, limit=DISK_LIMIT):
        journal = Journal(state, tmp_path / "pages", (), {"service.name": "t"}, "daemon")
        handed = Handover(journal, Daemon(state, journal), DiskLimit(state, limit), lambda: {FAULTS: float(faults)}, lambda: False)
        handed.start()
        made.append(handed)
        return journal, handed

    yield make
    for handed in made:
        handed.close(0)


@pytest.fixture
def attending(state):
    """`attending(exporter, ...)` gives a running delivery of a daemon with these exporters."""
    made = []

    def make(*exporters):
        keys = [exporter.name for exporter in exporters]
        delivery = Delivery(state, exporters, live_exporters=lambda about: keys if about.delivery == "daemon" else None)
        delivery.start()
        made.append(delivery)
        return delivery

    yield make
    for delivery in made:
        delivery.close(2)


def left(state):
    return list((state / "journals").iterdir())


def begun(journal, key):
    """An operation that does not end."""
    page = journal.take()
    page.append(encode_line((events.BEGIN, "b" * 16, NOW, events.OPERATION, "save", "0" * 31 + "1", "", {names.ID: key}, None)))


def test_everything_arrives(host, attending, state):
    """Every operation of two live processes reaches every exporter of the daemon, in order; when they have ended, nothing is left on disk."""
    exporters = FakeExporter("a"), FakeExporter("b")
    attending(*exporters)
    hosts = [host() for _ in range(2)]
    for number in range(200):
        for which, (journal, _) in enumerate(hosts):
            record_operation(journal, f"{which} {number}")
    for _, handed in hosts:
        assert handed.flush(20)
        assert handed.close(20)
    for exporter in exporters:
        for which in range(2):
            assert [key for key in exporter.ids if key.startswith(str(which))] == [f"{which} {number}" for number in range(200)]
    until(lambda: left(state) == [])


def test_one_process_delivers_at_a_time(host, attending):
    """Of two daemons one has a journal; when it goes, the other goes on where it stopped."""
    journal, handed = host()
    first, second = FakeExporter(), FakeExporter()
    one = attending(first)
    record_operation(journal, "a")
    assert handed.flush(20)
    other = attending(second)
    other.adoption.scan()
    record_operation(journal, "b")
    assert handed.flush(20)
    assert (first.ids, second.ids) == (["a", "b"], [])
    assert one.close(20)
    record_operation(journal, "c")
    assert handed.flush(20)
    assert (first.ids, second.ids) == (["a", "b"], ["c"])


def test_owner_dies(host, attending):
    """What it had begun is interrupted, what it had ended is delivered, once, although nothing else starts."""
    journal, _ = host()
    exporter = FakeExporter()
    delivery = attending(exporter)
    record_operation(journal, "ended")
    until(lambda: exporter.ids == ["ended"])
    begun(journal, "open")
    journal._owner_lock.release()  # as the kernel does
    until(lambda: exporter.ids == ["ended", "open"])
    until(lambda: delivery.interrupted == 1)  # it is counted after it is in the spool, where the exporter may find it at once
    until(lambda: not os.path.exists(journal.directory))


def test_nobody_there(host, attending, state):
    """Records wait until a daemon comes, also when their process has ended by then; flush says that they wait."""
    journal, handed = host()
    record_operation(journal, "a")
    assert handed.flush(0.2) is False
    assert handed.close(0) is False
    assert left(state) == [Path(journal.directory)]
    exporter = FakeExporter()
    attending(exporter)
    until(lambda: exporter.ids == ["a"])
    until(lambda: left(state) == [])


def test_threads_leave_it_alone(host, start_delivery, attending):
    """A process that delivers itself touches neither a live nor a dead journal of a daemon: it does not know where it goes."""
    journal, handed = host()
    record_operation(journal, "a")
    handed.flush(0)
    wrong = FakeExporter()
    _, thread = start_delivery(wrong, with_journal=False)
    assert thread.flush(20)
    handed.close(0)
    thread.adoption.scan()
    assert thread.flush(20)
    assert wrong.ids == []
    right = FakeExporter()
    attending(right)
    until(lambda: right.ids == ["a"])


def test_daemon_leaves_threads_alone(start_delivery, attending):
    """A daemon does not touch the journal of a live process that delivers itself, and finishes it when that process is dead."""
    own, others = FakeExporter(), FakeExporter()
    own.down = True
    journal, delivery = start_delivery(own)
    daemons = attending(others)
    record_operation(journal, "a")
    delivery.flush(0)
    daemons.adoption.scan()
    assert others.ids == []
    delivery.close(0)
    until(lambda: others.ids == ["a"])


@pytest.fixture
def small_spool(monkeypatch):
    for module in (outboxes, handover):
        monkeypatch.setattr(module, "SPOOL_LIMIT", 20_000)
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 4_000)


def test_disk_is_bounded_while_nobody_delivers(host, attending, small_spool):
    """The oldest go, and delivered plus counted drops is what was produced, exactly: the count reaches the daemon that comes later."""
    journal, handed = host()
    for number in range(200):
        record_operation(journal, str(number), size=500)
        handed.flush(0)
    assert spool.size(journal.directory) <= 20_000 + 4_000 + 2_000
    exporter = FakeExporter()
    delivery = attending(exporter)
    assert handed.flush(20)
    until(lambda: len(exporter.ids) + delivery.health().get(OVERFLOW, 0) == 200)
    assert 0 < len(exporter.ids) < 200
    assert exporter.ids == [str(number) for number in range(200 - len(exporter.ids), 200)], "the newest are kept"


def test_disk_is_bounded_though_no_daemon_ever_comes(host, attending, small_spool, state, monkeypatch):
    """A process that starts drops the oldest of what ended ones left beyond the limit; the count reaches the daemon that comes later."""
    monkeypatch.setattr(disk_limit, "JOURNAL_OVERHEAD", 1_000)
    for which in range(10):
        journal, handed = host()
        for number in range(20):
            record_operation(journal, f"{which} {number}", size=500)
            handed.flush(0)
        handed.close(0)
    _, handed = host(limit=40_000)
    until(lambda: sum(DiskLimit(state, 0)._sizes().values()) < 40_000)
    exporter = FakeExporter()
    delivery = attending(exporter)
    until(lambda: len(exporter.ids) + delivery.health().get(OVERFLOW, 0) == 200)
    assert 0 < len(exporter.ids) < 100


def test_disk_is_bounded_while_the_daemon_s_exporter_is_down(host, attending, small_spool, monkeypatch):
    """The daemon drops and counts; and an owner whose daemon holds the lock and does nothing drops itself."""
    monkeypatch.setattr(handover, "HARD_SPOOL_LIMIT", 40_000)
    journal, handed = host()
    exporter = FakeExporter()
    exporter.down = True
    delivery = attending(exporter)
    until(journal.has_deliverer)
    for number in range(200):
        record_operation(journal, str(number), size=500)
        handed.flush(0)
    assert spool.size(journal.directory) <= 40_000 + 4_000 + 2_000
    exporter.down = False
    assert handed.flush(20)
    assert 0 < len(exporter.ids) < 200
    until(lambda: len(exporter.ids) + delivery.health().get(OVERFLOW, 0) >= 200)


def test_counters_of_the_host_are_reported_once(host, attending):
    """What the host counts reaches the health of whoever delivers it; a daemon that comes after does not count it again."""
    _, handed = host(faults=3)
    first = attending(FakeExporter())
    until(lambda: first.health().get(FAULTS) == 3)
    first.close(20)
    second = attending(FakeExporter())
    until(lambda: second.adoption.live_count() == 1)
    second.adoption.scan()
    assert FAULTS not in second.health()
    assert handed.flush(20)


def test_missing_daemon_is_said_once(state, tmp_path, monkeypatch, caplog, attending):
    """After a while without one, in one line that says what to run; not while there is one."""
    for name in ("CHECK_INTERVAL", "WARN_AFTER"):
        monkeypatch.setattr(daemon, name, 0.0)
    journal = Journal(state, tmp_path / "pages", (), {}, "daemon")
    delivery = attending(FakeExporter())
    until(journal.has_deliverer)
    assert all(Daemon(state, journal).check() for _ in range(3))
    assert "daemon" not in caplog.text
    delivery.close(20)
    seen = Daemon(state, journal)
    assert all(seen.check() for _ in range(5))
    assert caplog.text.count(f"No daemon delivers the records of {state}. They are kept on disk; start `ckpt-observe daemon`.") == 1
    journal.remove()


def test_one_daemon_a_directory(state):
    """A second one is told who has it; when the first is clean_up, it may."""
    lock = daemon.acquire_daemon_lock(state)
    assert daemon.is_running(state)
    with pytest.raises(DaemonRunningError, match=rf"{state} already has a daemon \(pid {os.getpid()} on .* since .*--dir"):
        daemon.acquire_daemon_lock(state)
    lock.release()
    assert not daemon.is_running(state)
    daemon.acquire_daemon_lock(state).release()


def test_daemon_with_other_exporters(host, attending):
    """A new exporter of a later daemon gets what is still there; one that had it all gets nothing twice."""
    journal, handed = host()
    old, slow = FakeExporter("old"), FakeExporter("slow")
    slow.down = True
    first = attending(old, slow)
    record_operation(journal, "a")
    until(lambda: old.ids == ["a"])
    first.close(0.1)
    again, new = FakeExporter("old"), FakeExporter("new")
    attending(again, new)
    until(lambda: new.ids == ["a"])
    assert handed.flush(20)
    assert again.ids == []


def test_closed_again_and_again(host, attending):
    """A process that begins and ends to observe keeps no descriptor of it."""
    attending(FakeExporter())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        journal, handed = host()
        record_operation(journal, "a")
        assert handed.close(20)
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_removed_by_hand(host, attending, state):
    """A journal that vanishes is let go, the others are served, and who waits for the last process does not wait for ever."""
    journal, _ = host()
    other, handed = host()
    exporter = FakeExporter()
    delivery = attending(exporter)
    until(lambda: delivery.adoption.live_count() == 2)
    remove(journal.directory)
    until(lambda: delivery.adoption.live_count() == 1)
    record_operation(other, "a")
    assert handed.flush(20)
    assert exporter.ids == ["a"]
