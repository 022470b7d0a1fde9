"""If another process delivers, records reach the exporters once, whichever process ends first, and even if none is running yet."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from ckpt_observe.config import DISK_LIMIT
from ckpt_observe.delivery import companion, daemon, disk_limit
from ckpt_observe.delivery import handover as handover_module
from ckpt_observe.delivery import outbox as outboxes
from ckpt_observe.delivery.companion import Companion
from ckpt_observe.delivery.daemon import Daemon
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.handover import Handover
from ckpt_observe.errors import DaemonRunningError
from ckpt_observe.journal import spool
from ckpt_observe.journal.directory import OPEN_PAGES
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.pages import MappedPage
from ckpt_observe.record.encoding import encode_line
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, metrics
from ckpt_observe.support.locks import is_locked
from tests.delivery.conftest import NOW, FakeExporter, record_operation, remove, until

FAULTS = (metrics.FAULTS.name, ())
OVERFLOW = (metrics.DROPPED_RECORDS.name, ("overflow",))


@pytest.fixture
def start_host(state, tmp_path):
    """`start_host()` returns a journal for a daemon, and the `Handover` of its process."""
    handovers = []

    def start(faults=0, limit=DISK_LIMIT):
        journal = Journal(state, tmp_path / "pages", (), {"service.name": "t"}, "daemon")
        handover = Handover(journal, Daemon(state, journal), DiskLimit(state, limit), lambda: {FAULTS: float(faults)}, lambda: False)
        handover.start()
        handovers.append(handover)
        return journal, handover

    yield start
    for handover in handovers:
        handover.close(0)


@pytest.fixture
def start_daemon(state):
    """`start_daemon(exporter, ...)` returns the running delivery of a daemon with these exporters."""
    deliveries = []

    def start(*exporters):
        identities = [exporter.name for exporter in exporters]
        delivery = Delivery(state, exporters, live_exporters=lambda about: identities if about.delivery == "daemon" else None)
        delivery.start()
        deliveries.append(delivery)
        return delivery

    yield start
    for delivery in deliveries:
        delivery.close(2)


def journals(state):
    return list((state / "journals").iterdir())


def begin_operation(journal, key):
    """Record an operation that does not end. Return its page: one that nobody has would be ended as cancelled."""
    page = journal.take()
    page.append(encode_line((events.BEGIN, "b" * 16, NOW, events.OPERATION, "save", "0" * 31 + "1", "", {names.ID: key}, None)))
    return page


def test_everything_arrives(start_host, start_daemon, state):
    """Operations of two live processes reach every exporter of the daemon in order. After the processes ended, nothing remains on disk."""
    exporters = FakeExporter("a"), FakeExporter("b")
    start_daemon(*exporters)
    hosts = [start_host() for _ in range(2)]
    for number in range(200):
        for host, (journal, _) in enumerate(hosts):
            record_operation(journal, f"{host} {number}")
    for _, handover in hosts:
        assert handover.flush(60)
        assert handover.close(60)
    for exporter in exporters:
        for host in range(2):
            assert [key for key in exporter.ids if key.startswith(str(host))] == [f"{host} {number}" for number in range(200)]
    until(lambda: journals(state) == [])


def test_one_process_delivers_at_a_time(start_host, start_daemon):
    """Only one of two daemons delivers a journal. When it stops, the other continues where it stopped."""
    journal, handover = start_host()
    first, second = FakeExporter(), FakeExporter()
    first_daemon = start_daemon(first)
    record_operation(journal, "a")
    assert handover.flush(60)
    second_daemon = start_daemon(second)
    second_daemon.adoption.scan()
    record_operation(journal, "b")
    assert handover.flush(60)
    assert (first.ids, second.ids) == (["a", "b"], [])
    assert first_daemon.close(60)
    record_operation(journal, "c")
    assert handover.flush(60)
    assert (first.ids, second.ids) == (["a", "b"], ["c"])


def test_owner_dies(start_host, start_daemon):
    """When a process dies, its running operation is delivered as interrupted and its finished one once, although no other process starts."""
    journal, _ = start_host()
    exporter = FakeExporter()
    delivery = start_daemon(exporter)
    record_operation(journal, "ended")
    until(lambda: exporter.ids == ["ended"])
    page = begin_operation(journal, "open")
    journal._owner_lock.release()  # as the kernel does when a process dies
    until(lambda: exporter.ids == ["ended", "open"])
    until(lambda: delivery.interrupted == 1)  # counted after it was written to the spool, where the exporter may read it at once
    until(lambda: not os.path.exists(journal.directory))
    del page


def test_no_daemon(start_host, start_daemon, state):
    """Records wait for a daemon, even after their process ended. `flush()` returns False meanwhile."""
    journal, handover = start_host()
    record_operation(journal, "a")
    assert handover.flush(0.2) is False
    assert handover.close(0) is False
    assert journals(state) == [Path(journal.directory)]
    exporter = FakeExporter()
    start_daemon(exporter)
    until(lambda: exporter.ids == ["a"])
    until(lambda: journals(state) == [])


def test_in_process_delivery_ignores_journals_of_the_daemon(start_host, start_delivery, start_daemon):
    """A process that delivers itself adopts no journal that is meant for a daemon: it does not have the daemon's exporters."""
    journal, handover = start_host()
    record_operation(journal, "a")
    handover.flush(0)
    unrelated = FakeExporter()
    _, in_process = start_delivery(unrelated, with_journal=False)
    assert in_process.flush(60)
    handover.close(0)
    in_process.adoption.scan()
    assert in_process.flush(60)
    assert unrelated.ids == []
    right = FakeExporter()
    start_daemon(right)
    until(lambda: right.ids == ["a"])


def test_daemon_ignores_live_in_process_delivery(start_delivery, start_daemon):
    """A daemon adopts the journal of a process that delivers itself only after that process ended."""
    host_exporter, daemon_exporter = FakeExporter(), FakeExporter()
    host_exporter.down = True
    journal, delivery = start_delivery(host_exporter)
    daemon_delivery = start_daemon(daemon_exporter)
    record_operation(journal, "a")
    delivery.flush(0)
    daemon_delivery.adoption.scan()
    assert daemon_exporter.ids == []
    delivery.close(0)
    until(lambda: daemon_exporter.ids == ["a"])


@pytest.fixture
def small_spool(monkeypatch):
    for module in (outboxes, handover_module):
        monkeypatch.setattr(module, "SPOOL_LIMIT", 20_000)
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 4_000)


@pytest.mark.faults
def test_disk_is_bounded_while_nobody_delivers(start_host, start_daemon, small_spool):
    """The oldest records are dropped. Delivered plus dropped is exactly what was recorded: a later daemon reports the count."""
    journal, handover = start_host()
    for number in range(200):
        record_operation(journal, str(number), size=500)
        handover.flush(0)
    assert spool.size(journal.directory) <= 20_000 + 4_000 + 2_000
    exporter = FakeExporter()
    delivery = start_daemon(exporter)
    assert handover.flush(60)
    until(lambda: len(exporter.ids) + delivery.health().get(OVERFLOW, 0) == 200)
    assert 0 < len(exporter.ids) < 200
    assert exporter.ids == [str(number) for number in range(200 - len(exporter.ids), 200)], "the newest are kept"


def test_disk_is_bounded_without_any_daemon(start_host, start_daemon, small_spool, state, monkeypatch):
    """A process that starts drops the oldest records of ended ones beyond the limit. A later daemon reports the count."""
    monkeypatch.setattr(disk_limit, "JOURNAL_OVERHEAD", 1_000)
    for host in range(10):
        journal, handover = start_host()
        for number in range(20):
            record_operation(journal, f"{host} {number}", size=500)
            handover.flush(0)
        handover.close(0)
    _, handover = start_host(limit=40_000)
    until(lambda: sum(DiskLimit(state, 0)._sizes().values()) < 40_000)
    exporter = FakeExporter()
    delivery = start_daemon(exporter)
    until(lambda: len(exporter.ids) + delivery.health().get(OVERFLOW, 0) == 200)
    assert 0 < len(exporter.ids) < 100


@pytest.mark.faults
def test_disk_is_bounded_while_an_exporter_is_down(start_host, start_daemon, small_spool, monkeypatch):
    """The daemon drops records and counts them. If the daemon hangs, the host program does."""
    monkeypatch.setattr(handover_module, "HARD_SPOOL_LIMIT", 40_000)
    journal, handover = start_host()
    exporter = FakeExporter()
    exporter.down = True
    delivery = start_daemon(exporter)
    until(journal.has_deliverer)
    for number in range(200):
        record_operation(journal, str(number), size=500)
        handover.flush(0)
    assert spool.size(journal.directory) <= 40_000 + 4_000 + 2_000
    exporter.down = False
    assert handover.flush(60)
    assert 0 < len(exporter.ids) < 200
    until(lambda: len(exporter.ids) + delivery.health().get(OVERFLOW, 0) >= 200)


def test_counters_of_the_host_program_are_reported_once(start_host, start_daemon):
    """The counters of a host program are part of the health of its daemon. A later daemon does not count them again."""
    _, handover = start_host(faults=3)
    first = start_daemon(FakeExporter())
    until(lambda: first.health().get(FAULTS) == 3)
    first.close(20)
    second = start_daemon(FakeExporter())
    until(lambda: second.adoption.live_count() == 1)
    second.adoption.scan()
    assert FAULTS not in second.health()
    assert handover.flush(60)


def test_missing_daemon_is_logged_once(state, tmp_path, monkeypatch, caplog, start_daemon):
    """Without a daemon, one line after a while says what to run. With a daemon, nothing is logged."""
    for name in ("CHECK_INTERVAL", "WARN_AFTER"):
        monkeypatch.setattr(daemon, name, 0.0)
    journal = Journal(state, tmp_path / "pages", (), {}, "daemon")
    delivery = start_daemon(FakeExporter())
    until(journal.has_deliverer)
    assert all(Daemon(state, journal).check() for _ in range(3))
    assert "daemon" not in caplog.text
    delivery.close(20)
    deliverer = Daemon(state, journal)
    assert all(deliverer.check() for _ in range(5))
    assert caplog.text.count(f"No daemon delivers the records of {state}. They are kept on disk; start `ckpt-observe daemon`.") == 1
    journal.remove()


def test_one_daemon_per_state_directory(state):
    """The error of a second daemon names the first one. After the first stopped, the second may start.

    The lock file has the name that every version uses, so this holds for daemons of different versions too.
    """
    lock = daemon.acquire_daemon_lock(state)
    assert is_locked(str(state / "agent.lock"))
    assert daemon.is_running(state)
    with pytest.raises(DaemonRunningError, match=rf"{state} already has a daemon \(pid {os.getpid()} on .* since .*--dir"):
        daemon.acquire_daemon_lock(state)
    lock.release()
    assert not daemon.is_running(state)
    daemon.acquire_daemon_lock(state).release()


def test_daemon_with_other_exporters(start_host, start_daemon):
    """A new exporter of a later daemon gets the records that still exist. An exporter that already has them gets nothing twice."""
    journal, handover = start_host()
    old, slow = FakeExporter("old"), FakeExporter("slow")
    slow.down = True
    first = start_daemon(old, slow)
    record_operation(journal, "a")
    until(lambda: old.ids == ["a"])
    first.close(0.1)
    again, new = FakeExporter("old"), FakeExporter("new")
    start_daemon(again, new)
    until(lambda: new.ids == ["a"])
    assert handover.flush(60)
    assert again.ids == []


def test_repeated_start_and_close(start_host, start_daemon):
    """A process that starts and closes a handover repeatedly leaks no descriptor."""
    exporter = FakeExporter()
    start_daemon(exporter)
    for round in range(4):
        journal, handover = start_host()
        record_operation(journal, "a")
        assert handover.close(60)
        if round == 0:  # the daemon has opened its index of saves
            until(lambda: exporter.ids)
            before = len(os.listdir("/proc/self/fd"))
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_close_while_pages_are_copied(start_host, monkeypatch, caplog):
    """If a program closes while the collecting thread copies its pages, nothing is logged, and no copy is left that recovery would trust."""
    journal, handover = start_host()
    copying, closed = threading.Event(), threading.Event()
    read_image = MappedPage.read_image

    def read_slowly(page):
        if threading.current_thread() is handover._thread:
            copying.set()
            closed.wait(1)  # the copy goes on after the close, unless the close waits for it
        return read_image(page)

    monkeypatch.setattr(MappedPage, "read_image", read_slowly)
    page = journal.take()
    page.append(b"[1]\n")
    assert copying.wait(20)
    page.finish(b"[2]\n")
    handover.close(0)
    closed.set()
    handover._thread.join(20)
    assert caplog.text == ""
    assert OPEN_PAGES not in os.listdir(journal.directory)


def test_no_companion_starts_after_close(state, monkeypatch):
    """The collecting thread, which may outlive a close by one pass, starts no companion after it."""
    monkeypatch.setattr(companion.subprocess, "Popen", None)
    deliverer = Companion(state, "x", {})
    deliverer.close(0)
    assert deliverer.check()


def test_removed_by_hand(start_host, start_daemon, state):
    """A journal that is removed by hand is released, and other journals are delivered. A companion does not wait for its process."""
    journal, _ = start_host()
    other, handover = start_host()
    exporter = FakeExporter()
    delivery = start_daemon(exporter)
    until(lambda: delivery.adoption.live_count() == 2)
    remove(journal.directory)
    until(lambda: delivery.adoption.live_count() == 1)
    record_operation(other, "a")
    assert handover.flush(60)
    assert exporter.ids == ["a"]
