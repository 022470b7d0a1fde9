"""What ended processes left is bounded, all together: the oldest go, every one is counted, and nobody else's are touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpt_observe import config
from ckpt_observe.delivery import custody, leftovers
from ckpt_observe.delivery.delivery import Drain
from ckpt_observe.delivery.disk_limit import Leftovers
from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.errors import ConfigError
from ckpt_observe.journal import spool
from ckpt_observe.journal.journal import Journal
from ckpt_observe.record.line import line
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, metrics
from tests.delivery.conftest import NOW, FakeSink, operation, until

OVERFLOW = (metrics.DROPPED.name, ("overflow",))
LIMIT = 40_000
EACH = 1_000


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(leftovers, "EACH", EACH)
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 4_000)


@pytest.fixture
def ended(state, tmp_path):
    """`ended(name)` gives the journal of an ended process with twenty operations of half a kilobyte, which an agent is to deliver."""

    def make(name, *, killed=False):
        journal = Journal(state, tmp_path / "ring", (), {}, "agent")
        for number in range(20):
            operation(journal, f"{name} {number}", size=500)
            journal.pool.collect()
        if killed:
            journal.take().append(
                line((events.BEGIN, "b" * 16, NOW, events.OPERATION, "save", "0" * 31 + "1", "", {names.ID: f"{name} open"}, None))
            )
            journal.spool.close()
            journal._owner.release()  # as the kernel does
        else:
            journal.release()
        return journal

    return make


def delivered(state):
    """What an agent delivers that comes now."""
    sink = FakeSink()
    drain = Drain(state, [sink], attends=lambda _: ["fake"])
    drain.start()
    assert drain.close(20)
    return sink.had


def newest(count):
    """Of ten journals' operations."""
    return set([f"{number} {each}" for number in range(10) for each in range(20)][-count:])


def on_disk(state):
    return sum(Leftovers(state, LIMIT)._sizes().values())


def test_oldest_go_and_are_counted(state, ended, caplog):
    """Of ten journals the newest operations are kept, within the limit; kept plus counted is what was produced; it is said once."""
    for number in range(10):
        ended(str(number))
    found = Leftovers(state, LIMIT)
    for _ in range(2):
        found.keep_within_limit()
    assert on_disk(state) <= LIMIT
    had = delivered(state)
    assert set(had) == newest(len(had))
    assert 20 < len(had) == 200 - found.health()[OVERFLOW]
    assert caplog.text.count("the oldest of it is dropped") == 1


def test_within_the_limit(state, ended):
    """Below it nothing is dropped, and nothing is said to be."""
    ended("a")
    found = Leftovers(state, LIMIT)
    found.keep_within_limit()
    assert found.health() == {}
    assert len(delivered(state)) == 20


def test_interrupted_go_last(state, ended):
    """The report of an operation that was cut short outlives later records, until there are too many of such reports."""
    for number in range(50):
        ended(str(number), killed=number < 5)
    Leftovers(state, LIMIT).keep_within_limit()
    assert [key for key in delivered(state) if "open" in key] == [f"{number} open" for number in range(5)]
    for number in range(10):
        ended(str(number), killed=True)
    Leftovers(state, 8 * EACH).keep_within_limit()
    reports = [key for key in delivered(state) if "open" in key]
    assert reports == [f"{number} open" for number in range(10)][-len(reports) :]
    assert 0 < len(reports) < 10


def test_others_are_not_touched(state, tmp_path, ended):
    """Neither the journal of a live process, nor one that somebody delivers, nor a damaged one, is made smaller for the rest."""
    live = Journal(state, tmp_path / "ring", (), {}, "agent")
    for number in range(100):
        operation(live, str(number), size=500)
        live.pool.collect()
    damaged = Path(ended("damaged").directory)
    (damaged / "about.json").write_text("{")
    held = ended("held")
    down = FakeSink()
    down.down = True
    drain = Drain(state, [down], attends=lambda _: ["fake"])
    drain.custody.look()
    sizes = [spool.size(each) for each in (live.directory, str(damaged), held.directory)]
    free = ended("free")
    found = Leftovers(state, LIMIT // 4)
    found.keep_within_limit()
    assert [spool.size(each) for each in (live.directory, str(damaged), held.directory)] == sizes
    assert spool.size(free.directory) < LIMIT // 4
    assert found.health()[OVERFLOW] > 0
    drain.close(0)
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
    found = Leftovers(state, LIMIT)
    found._shrink([bad, *sorted(each for each in found._sizes() if each != bad)[::-1]], {})
    assert on_disk(state) - spool.size(bad) - EACH <= LIMIT
    assert caplog.text.count(f"{bad}: Input/output error; it is not made smaller") == 1


def test_agent_delivers_what_it_can(state, ended):
    """One that comes late drops nothing that it can deliver, however much there is."""
    for number in range(10):
        ended(str(number))
    sink = FakeSink()
    drain = Drain(state, [sink], attends=lambda _: ["fake"], limit=EACH)
    drain.start()
    until(lambda: drain.custody.outboxes() == [] and not list((state / "journals").iterdir()))
    assert set(sink.had) == newest(200)
    drain.close(20)


def test_sink_is_down(state, ended, monkeypatch):
    """Whoever holds them while a sink is away keeps them within the limit too, and counts what it never delivers."""
    monkeypatch.setattr(custody, "PATIENCE", 0.0)
    down = FakeSink()
    down.down = True
    drain = Drain(state, [down], attends=lambda _: ["fake"], limit=LIMIT)
    for number in range(10):
        ended(str(number))
    drain.start()
    until(lambda: drain.health().get(OVERFLOW) and on_disk(state) <= LIMIT)
    down.down = False
    assert drain.flush(20)
    assert set(down.had) == newest(len(down.had))
    assert len(down.had) + drain.health()[OVERFLOW] == 200
    drain.close(20)


def test_shared_memory_of_killed_processes(state, tmp_path, ended):
    """Is given back though no agent comes; that of a live process is not; what they held is on disk."""
    killed = [ended(str(number), killed=True) for number in range(3)]
    live = Journal(state, tmp_path / "ring", (), {}, "agent")
    Leftovers(state, LIMIT).recover(os.path.dirname(live.about.pages))
    assert [path.name for path in (tmp_path / "ring").iterdir()] == [os.path.basename(live.about.pages) + "-00.pages"]
    assert {key for key in delivered(state) if "open" in key} == {f"{number} open" for number in range(len(killed))}
    live.remove()


@pytest.mark.parametrize("wrong", ["0", "-1", "1 GiB", "1.5"])
def test_setting(wrong):
    """Is a number of MiB."""
    assert config.read({"CKPT_OBSERVE_DISK_LIMIT": "7"}).disk_limit == 7 << 20
    assert config.read({}).disk_limit == 1 << 30
    with pytest.raises(ConfigError, match=f"CKPT_OBSERVE_DISK_LIMIT: '{wrong}' is not a number of MiB"):
        config.read({"CKPT_OBSERVE_DISK_LIMIT": wrong})
