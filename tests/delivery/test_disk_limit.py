"""The records of ended processes share one limit: the oldest are dropped and counted, and other journals are not touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpt_observe import config
from ckpt_observe.delivery import adoption, disk_limit
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.disk_limit import DiskLimit
from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.errors import ConfigError
from ckpt_observe.journal import spool
from ckpt_observe.journal.journal import Journal
from ckpt_observe.record.encoding import encode_line
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, metrics
from tests.delivery.conftest import NOW, FakeExporter, record_operation, until

OVERFLOW = (metrics.DROPPED_RECORDS.name, ("overflow",))
LIMIT = 40_000
OVERHEAD = 1_000


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    monkeypatch.setattr(disk_limit, "JOURNAL_OVERHEAD", OVERHEAD)
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 4_000)


@pytest.fixture
def leave_journal(state, tmp_path):
    """`leave_journal(name)` returns a journal for a daemon that an ended process left, with 20 operations of 0.5 KB."""

    def leave(name, *, killed=False):
        journal = Journal(state, tmp_path / "pages", (), {}, "daemon")
        for number in range(20):
            record_operation(journal, f"{name} {number}", size=500)
            journal.pool.collect()
        if killed:
            journal.take().append(
                encode_line((events.BEGIN, "b" * 16, NOW, events.OPERATION, "save", "0" * 31 + "1", "", {names.ID: f"{name} open"}, None))
            )
            journal.spool.close()
            journal._owner_lock.release()  # as the kernel does when a process dies
        else:
            journal.release()
        return journal

    return leave


def deliver(state):
    """Run a daemon that delivers everything. Return the ids."""
    exporter = FakeExporter()
    delivery = Delivery(state, [exporter], live_exporters=lambda _: ["fake"])
    delivery.start()
    assert delivery.close(60)
    return exporter.ids


def newest(count):
    """Return the ids of the newest operations of ten journals."""
    return set([f"{journal} {number}" for journal in range(10) for number in range(20)][-count:])


def disk_usage(state):
    return sum(DiskLimit(state, LIMIT)._sizes().values())


def test_oldest_records_are_dropped_and_counted(state, leave_journal, caplog):
    """The newest operations of ten journals are kept within the limit. Kept plus dropped is what was recorded. It is logged once."""
    for number in range(10):
        leave_journal(str(number))
    ended_limit = DiskLimit(state, LIMIT)
    for _ in range(2):
        ended_limit.enforce()
    assert disk_usage(state) <= LIMIT
    ids = deliver(state)
    assert set(ids) == newest(len(ids))
    assert 20 < len(ids) == 200 - ended_limit.health()[OVERFLOW]
    assert caplog.text.count("the oldest records are dropped") == 1


def test_within_the_limit(state, leave_journal):
    """Below the limit nothing is dropped."""
    leave_journal("a")
    ended_limit = DiskLimit(state, LIMIT)
    ended_limit.enforce()
    assert ended_limit.health() == {}
    assert len(deliver(state)) == 20


def test_interrupted_operations_are_dropped_last(state, leave_journal):
    """Reports of interrupted operations outlive newer records, until there are too many such reports."""
    for number in range(50):
        leave_journal(str(number), killed=number < 5)
    DiskLimit(state, LIMIT).enforce()
    assert [key for key in deliver(state) if "open" in key] == [f"{number} open" for number in range(5)]
    for number in range(10):
        leave_journal(str(number), killed=True)
    DiskLimit(state, 8 * OVERHEAD).enforce()
    reports = [key for key in deliver(state) if "open" in key]
    assert reports == [f"{number} open" for number in range(10)][-len(reports) :]
    assert 0 < len(reports) < 10


def test_journals_in_use_are_not_touched(state, tmp_path, leave_journal):
    """Journals that belong to a live process, are being delivered or are damaged are not shrunk."""
    live = Journal(state, tmp_path / "pages", (), {}, "daemon")
    for number in range(100):
        record_operation(live, str(number), size=500)
        live.pool.collect()
    damaged = Path(leave_journal("damaged").directory)
    (damaged / "about.json").write_text("{")
    held = leave_journal("held")
    down = FakeExporter()
    down.down = True
    delivery = Delivery(state, [down], live_exporters=lambda _: ["fake"])
    delivery.adoption.scan()
    damaged = state / "damaged" / damaged.name
    sizes = [spool.size(directory) for directory in (live.directory, str(damaged), held.directory)]
    free = leave_journal("free")
    ended_limit = DiskLimit(state, LIMIT // 4)
    ended_limit.enforce()
    assert [spool.size(directory) for directory in (live.directory, str(damaged), held.directory)] == sizes
    assert spool.size(free.directory) < LIMIT // 4
    assert ended_limit.health()[OVERFLOW] > 0
    delivery.close(0)
    live.remove()


def test_unreadable_journal(state, leave_journal, monkeypatch, caplog):
    """A journal that cannot be read is logged once, and the others are shrunk all the same."""
    bad = leave_journal("bad").directory
    for number in range(10):
        leave_journal(str(number))
    shrink = Outbox.shrink

    def failing(outbox, limit, *, keep):
        if outbox.directory == bad:
            raise OSError(5, "Input/output error")
        return shrink(outbox, limit, keep=keep)

    monkeypatch.setattr(Outbox, "shrink", failing)
    ended_limit = DiskLimit(state, LIMIT)
    ended_limit._shrink([bad, *sorted(path for path in ended_limit._sizes() if path != bad)[::-1]], {})
    assert disk_usage(state) - spool.size(bad) - OVERHEAD <= LIMIT
    assert caplog.text.count(f"Cannot drop the oldest records of {bad}: Input/output error.") == 1


def test_daemon_delivers_what_it_can(state, leave_journal):
    """A daemon that starts late drops nothing that it can deliver, however much there is."""
    for number in range(10):
        leave_journal(str(number))
    exporter = FakeExporter()
    delivery = Delivery(state, [exporter], live_exporters=lambda _: ["fake"], disk_limit=OVERHEAD)
    delivery.start()
    until(lambda: delivery.adoption.outboxes() == [] and not list((state / "journals").iterdir()))
    assert set(exporter.ids) == newest(200)
    delivery.close(20)


def test_exporter_is_down(state, leave_journal, monkeypatch):
    """While an exporter is down, the process that delivers enforces the limit, too, and counts what it drops."""
    monkeypatch.setattr(adoption, "GRACE_PERIOD", 0.0)
    down = FakeExporter()
    down.down = True
    delivery = Delivery(state, [down], live_exporters=lambda _: ["fake"], disk_limit=LIMIT)
    for number in range(10):
        leave_journal(str(number))
    delivery.start()
    until(lambda: delivery.health().get(OVERFLOW) and disk_usage(state) <= LIMIT)
    down.down = False
    assert delivery.flush(60)
    assert set(down.ids) >= newest(20), "the newest are kept, and batches that were tried"
    assert len(down.ids) + delivery.health()[OVERFLOW] == 200
    delivery.close(20)


def test_shared_memory_of_killed_processes(state, tmp_path, leave_journal):
    """The shared memory of killed processes is freed without a daemon, and its content moved to disk. That of a live process is kept."""
    killed = [leave_journal(str(number), killed=True) for number in range(3)]
    live = Journal(state, tmp_path / "pages", (), {}, "daemon")
    DiskLimit(state, LIMIT).recover_pages(os.path.dirname(live.about.pages))
    assert [path.name for path in (tmp_path / "pages").iterdir()] == [os.path.basename(live.about.pages) + "-00.pages"]
    assert {key for key in deliver(state) if "open" in key} == {f"{number} open" for number in range(len(killed))}
    live.remove()


@pytest.mark.parametrize("invalid", ["0", "-1", "1 GiB", "1.5"])
def test_setting(invalid):
    """The setting is a number of MiB."""
    assert config.read({"CKPT_OBSERVE_DISK_LIMIT": "7"}).disk_limit == 7 << 20
    assert config.read({}).disk_limit == 1 << 30
    with pytest.raises(ConfigError, match=f"CKPT_OBSERVE_DISK_LIMIT: '{invalid}' is not a number of MiB"):
        config.read({"CKPT_OBSERVE_DISK_LIMIT": invalid})
