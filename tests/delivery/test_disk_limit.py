"""What ended processes left is bounded, all together: the oldest go, every one is counted, and nobody else's are touched."""

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
EACH = 1_000


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(disk_limit, "JOURNAL_OVERHEAD", EACH)
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 4_000)


@pytest.fixture
def ended(state, tmp_path):
    """`ended(name)` gives the journal of an ended process with twenty operations of half a kilobyte, which a daemon is to deliver."""

    def make(name, *, killed=False):
        journal = Journal(state, tmp_path / "pages", (), {}, "daemon")
        for number in range(20):
            record_operation(journal, f"{name} {number}", size=500)
            journal.pool.collect()
        if killed:
            journal.take().append(
                encode_line((events.BEGIN, "b" * 16, NOW, events.OPERATION, "save", "0" * 31 + "1", "", {names.ID: f"{name} open"}, None))
            )
            journal.spool.close()
            journal._owner_lock.release()  # as the kernel does
        else:
            journal.release()
        return journal

    return make


def delivered(state):
    """What a daemon delivers that comes now."""
    exporter = FakeExporter()
    delivery = Delivery(state, [exporter], live_exporters=lambda _: ["fake"])
    delivery.start()
    assert delivery.close(20)
    return exporter.ids


def newest(count):
    """Of ten journals' operations."""
    return set([f"{number} {each}" for number in range(10) for each in range(20)][-count:])


def on_disk(state):
    return sum(DiskLimit(state, LIMIT)._sizes().values())


def test_oldest_go_and_are_counted(state, ended, caplog):
    """Of ten journals the newest operations are kept, within the limit; kept plus counted is what was produced; it is said once."""
    for number in range(10):
        ended(str(number))
    found = DiskLimit(state, LIMIT)
    for _ in range(2):
        found.enforce()
    assert on_disk(state) <= LIMIT
    had = delivered(state)
    assert set(had) == newest(len(had))
    assert 20 < len(had) == 200 - found.health()[OVERFLOW]
    assert caplog.text.count("the oldest records are dropped") == 1


def test_within_the_limit(state, ended):
    """Below it nothing is dropped, and nothing is said to be."""
    ended("a")
    found = DiskLimit(state, LIMIT)
    found.enforce()
    assert found.health() == {}
    assert len(delivered(state)) == 20


def test_interrupted_go_last(state, ended):
    """The report of an operation that was cut short outlives later records, until there are too many of such reports."""
    for number in range(50):
        ended(str(number), killed=number < 5)
    DiskLimit(state, LIMIT).enforce()
    assert [key for key in delivered(state) if "open" in key] == [f"{number} open" for number in range(5)]
    for number in range(10):
        ended(str(number), killed=True)
    DiskLimit(state, 8 * EACH).enforce()
    reports = [key for key in delivered(state) if "open" in key]
    assert reports == [f"{number} open" for number in range(10)][-len(reports) :]
    assert 0 < len(reports) < 10


def test_others_are_not_touched(state, tmp_path, ended):
    """Neither the journal of a live process, nor one that somebody delivers, nor a damaged one, is made smaller for the rest."""
    live = Journal(state, tmp_path / "pages", (), {}, "daemon")
    for number in range(100):
        record_operation(live, str(number), size=500)
        live.pool.collect()
    damaged = Path(ended("damaged").directory)
    (damaged / "about.json").write_text("{")
    held = ended("held")
    down = FakeExporter()
    down.down = True
    delivery = Delivery(state, [down], live_exporters=lambda _: ["fake"])
    delivery.adoption.scan()
    sizes = [spool.size(each) for each in (live.directory, str(damaged), held.directory)]
    free = ended("free")
    found = DiskLimit(state, LIMIT // 4)
    found.enforce()
    assert [spool.size(each) for each in (live.directory, str(damaged), held.directory)] == sizes
    assert spool.size(free.directory) < LIMIT // 4
    assert found.health()[OVERFLOW] > 0
    delivery.close(0)
    live.remove()


def test_one_that_cannot_be_read(state, ended, monkeypatch, caplog):
    """Does not keep the others from being made smaller; it is named, once."""
    bad = ended("bad").directory
    for number in range(10):
        ended(str(number))
    shrink = Outbox.shrink

    def failing(outbox, limit, *, keep):
        if outbox.directory == bad:
            raise OSError(5, "Input/output error")
        return shrink(outbox, limit, keep=keep)

    monkeypatch.setattr(Outbox, "shrink", failing)
    found = DiskLimit(state, LIMIT)
    found._shrink([bad, *sorted(each for each in found._sizes() if each != bad)[::-1]], {})
    assert on_disk(state) - spool.size(bad) - EACH <= LIMIT
    assert caplog.text.count(f"Cannot shrink {bad}: Input/output error.") == 1


def test_daemon_delivers_what_it_can(state, ended):
    """One that comes late drops nothing that it can deliver, however much there is."""
    for number in range(10):
        ended(str(number))
    exporter = FakeExporter()
    delivery = Delivery(state, [exporter], live_exporters=lambda _: ["fake"], disk_limit=EACH)
    delivery.start()
    until(lambda: delivery.adoption.outboxes() == [] and not list((state / "journals").iterdir()))
    assert set(exporter.ids) == newest(200)
    delivery.close(20)


def test_exporter_is_down(state, ended, monkeypatch):
    """Whoever holds them while an exporter is away keeps them within the limit too, and counts what it never delivers."""
    monkeypatch.setattr(adoption, "GRACE_PERIOD", 0.0)
    down = FakeExporter()
    down.down = True
    delivery = Delivery(state, [down], live_exporters=lambda _: ["fake"], disk_limit=LIMIT)
    for number in range(10):
        ended(str(number))
    delivery.start()
    until(lambda: delivery.health().get(OVERFLOW) and on_disk(state) <= LIMIT)
    down.down = False
    assert delivery.flush(20)
    assert set(down.ids) == newest(len(down.ids))
    assert len(down.ids) + delivery.health()[OVERFLOW] == 200
    delivery.close(20)


def test_shared_memory_of_killed_processes(state, tmp_path, ended):
    """Is given back though no daemon comes; that of a live process is not; what they held is on disk."""
    killed = [ended(str(number), killed=True) for number in range(3)]
    live = Journal(state, tmp_path / "pages", (), {}, "daemon")
    DiskLimit(state, LIMIT).recover_pages(os.path.dirname(live.about.pages))
    assert [path.name for path in (tmp_path / "pages").iterdir()] == [os.path.basename(live.about.pages) + "-00.pages"]
    assert {key for key in delivered(state) if "open" in key} == {f"{number} open" for number in range(len(killed))}
    live.remove()


@pytest.mark.parametrize("wrong", ["0", "-1", "1 GiB", "1.5"])
def test_setting(wrong):
    """Is a number of MiB."""
    assert config.read({"CKPT_OBSERVE_DISK_LIMIT": "7"}).disk_limit == 7 << 20
    assert config.read({}).disk_limit == 1 << 30
    with pytest.raises(ConfigError, match=f"CKPT_OBSERVE_DISK_LIMIT: '{wrong}' is not a number of MiB"):
        config.read({"CKPT_OBSERVE_DISK_LIMIT": wrong})
