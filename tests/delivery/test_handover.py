"""Another process drains: the same records reach the same sinks, once, whoever of the two ends first, and whether or not it is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ckpt_observe.config import DISK_LIMIT
from ckpt_observe.delivery import agent, handover, leftovers
from ckpt_observe.delivery import outbox as outboxes
from ckpt_observe.delivery.daemon import Agent
from ckpt_observe.delivery.delivery import Drain
from ckpt_observe.delivery.handover import Handover
from ckpt_observe.delivery.disk_limit import Leftovers
from ckpt_observe.errors import DaemonRunningError
from ckpt_observe.journal import spool
from ckpt_observe.journal.journal import Journal
from ckpt_observe.record.line import line
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events, metrics
from tests.delivery.conftest import NOW, FakeSink, operation, remove, until

FAULTS = (metrics.FAULTS.name, ())
OVERFLOW = (metrics.DROPPED.name, ("overflow",))


@pytest.fixture
def host(state, tmp_path):
    """`host()` gives a journal that an agent is to drain, and what stands for the drain in its process."""
    made = []

    def make(faults=0, limit=DISK_LIMIT):
        journal = Journal(state, tmp_path / "ring", (), {"service.name": "t"}, "agent")
        handed = Handover(journal, Agent(state, journal), Leftovers(state, limit), lambda: {FAULTS: float(faults)}, lambda: False)
        handed.start()
        made.append(handed)
        return journal, handed

    yield make
    for handed in made:
        handed.close(0)


@pytest.fixture
def attending(state):
    """`attending(sink, ...)` gives a running drain of an agent with these sinks."""
    made = []

    def make(*sinks):
        keys = [sink.name for sink in sinks]
        drain = Drain(state, sinks, attends=lambda about: keys if about.drain == "agent" else None)
        drain.start()
        made.append(drain)
        return drain

    yield make
    for drain in made:
        drain.close(2)


def left(state):
    return list((state / "journals").iterdir())


def begun(journal, key):
    """An operation that does not end."""
    page = journal.take()
    page.append(line((events.BEGIN, "b" * 16, NOW, events.OPERATION, "save", "0" * 31 + "1", "", {names.ID: key}, None)))


def test_everything_arrives(host, attending, state):
    """Every operation of two live processes reaches every sink of the agent, in order; when they have ended, nothing is left on disk."""
    sinks = FakeSink("a"), FakeSink("b")
    attending(*sinks)
    hosts = [host() for _ in range(2)]
    for number in range(200):
        for which, (journal, _) in enumerate(hosts):
            operation(journal, f"{which} {number}")
    for _, handed in hosts:
        assert handed.flush(20)
        assert handed.close(20)
    for sink in sinks:
        for which in range(2):
            assert [key for key in sink.had if key.startswith(str(which))] == [f"{which} {number}" for number in range(200)]
    until(lambda: left(state) == [])


def test_one_drains_at_a_time(host, attending):
    """Of two agents one has a journal; when it goes, the other goes on where it stopped."""
    journal, handed = host()
    first, second = FakeSink(), FakeSink()
    one = attending(first)
    operation(journal, "a")
    assert handed.flush(20)
    other = attending(second)
    other.custody.look()
    operation(journal, "b")
    assert handed.flush(20)
    assert (first.had, second.had) == (["a", "b"], [])
    assert one.close(20)
    operation(journal, "c")
    assert handed.flush(20)
    assert (first.had, second.had) == (["a", "b"], ["c"])


def test_owner_dies(host, attending):
    """What it had begun is interrupted, what it had ended is delivered, once, although nothing else starts."""
    journal, _ = host()
    sink = FakeSink()
    drain = attending(sink)
    operation(journal, "ended")
    until(lambda: sink.had == ["ended"])
    begun(journal, "open")
    journal._owner.release()  # as the kernel does
    until(lambda: sink.had == ["ended", "open"])
    until(lambda: drain.interrupted == 1)  # it is counted after it is in the spool, where the sink may find it at once
    until(lambda: not os.path.exists(journal.directory))


def test_nobody_there(host, attending, state):
    """Records wait until an agent comes, also when their process has ended by then; flush says that they wait."""
    journal, handed = host()
    operation(journal, "a")
    assert handed.flush(0.2) is False
    assert handed.close(0) is False
    assert left(state) == [Path(journal.directory)]
    sink = FakeSink()
    attending(sink)
    until(lambda: sink.had == ["a"])
    until(lambda: left(state) == [])


def test_threads_leave_it_alone(host, world, attending):
    """A process that drains itself touches neither a live nor a dead journal of an agent: it does not know where it goes."""
    journal, handed = host()
    operation(journal, "a")
    handed.flush(0)
    wrong = FakeSink()
    _, thread = world(wrong, own=False)
    assert thread.flush(20)
    handed.close(0)
    thread.custody.look()
    assert thread.flush(20)
    assert wrong.had == []
    right = FakeSink()
    attending(right)
    until(lambda: right.had == ["a"])


def test_agent_leaves_threads_alone(world, attending):
    """An agent does not touch the journal of a live process that drains itself, and finishes it when that process is dead."""
    own, others = FakeSink(), FakeSink()
    own.down = True
    journal, drain = world(own)
    agents = attending(others)
    operation(journal, "a")
    drain.flush(0)
    agents.custody.look()
    assert others.had == []
    drain.close(0)
    until(lambda: others.had == ["a"])


@pytest.fixture
def small_spool(monkeypatch):
    for module in (outboxes, handover):
        monkeypatch.setattr(module, "SPOOL_LIMIT", 20_000)
    monkeypatch.setattr(spool, "SEGMENT_SIZE", 4_000)


def test_disk_is_bounded_while_nobody_drains(host, attending, small_spool):
    """The oldest go, and delivered plus counted drops is what was produced, exactly: the count reaches the agent that comes later."""
    journal, handed = host()
    for number in range(200):
        operation(journal, str(number), size=500)
        handed.flush(0)
    assert spool.size(journal.directory) <= 20_000 + 4_000 + 2_000
    sink = FakeSink()
    drain = attending(sink)
    assert handed.flush(20)
    until(lambda: len(sink.had) + drain.health().get(OVERFLOW, 0) == 200)
    assert 0 < len(sink.had) < 200
    assert sink.had == [str(number) for number in range(200 - len(sink.had), 200)], "the newest are kept"


def test_disk_is_bounded_though_no_agent_ever_comes(host, attending, small_spool, state, monkeypatch):
    """A process that starts drops the oldest of what ended ones left beyond the limit; the count reaches the agent that comes later."""
    monkeypatch.setattr(leftovers, "EACH", 1_000)
    for which in range(10):
        journal, handed = host()
        for number in range(20):
            operation(journal, f"{which} {number}", size=500)
            handed.flush(0)
        handed.close(0)
    _, handed = host(limit=40_000)
    until(lambda: sum(Leftovers(state, 0)._sizes().values()) < 40_000)
    sink = FakeSink()
    drain = attending(sink)
    until(lambda: len(sink.had) + drain.health().get(OVERFLOW, 0) == 200)
    assert 0 < len(sink.had) < 100


def test_disk_is_bounded_while_the_agent_s_sink_is_down(host, attending, small_spool, monkeypatch):
    """The agent drops and counts; and an owner whose agent holds the lock and does nothing drops itself."""
    monkeypatch.setattr(handover, "STUCK", 40_000)
    journal, handed = host()
    sink = FakeSink()
    sink.down = True
    drain = attending(sink)
    until(journal.drained)
    for number in range(200):
        operation(journal, str(number), size=500)
        handed.flush(0)
    assert spool.size(journal.directory) <= 40_000 + 4_000 + 2_000
    sink.down = False
    assert handed.flush(20)
    assert 0 < len(sink.had) < 200
    until(lambda: len(sink.had) + drain.health().get(OVERFLOW, 0) >= 200)


def test_counters_of_the_host_are_reported_once(host, attending):
    """What the host counts reaches the health of whoever drains it; an agent that comes after does not count it again."""
    _, handed = host(faults=3)
    first = attending(FakeSink())
    until(lambda: first.health().get(FAULTS) == 3)
    first.close(20)
    second = attending(FakeSink())
    until(lambda: second.custody.live() == 1)
    second.custody.look()
    assert FAULTS not in second.health()
    assert handed.flush(20)


def test_missing_agent_is_said_once(state, tmp_path, monkeypatch, caplog, attending):
    """After a while without one, in one line that says what to run; not while there is one."""
    for name in ("LOOK_EVERY", "MISSED_AFTER"):
        monkeypatch.setattr(agent, name, 0.0)
    journal = Journal(state, tmp_path / "ring", (), {}, "agent")
    drain = attending(FakeSink())
    until(journal.drained)
    assert all(Agent(state, journal).look() for _ in range(3))
    assert "agent" not in caplog.text
    drain.close(20)
    seen = Agent(state, journal)
    assert all(seen.look() for _ in range(5))
    assert caplog.text.count(f"no agent drains {state}; records wait there until `ckpt-observe daemon` runs") == 1
    journal.remove()


def test_one_agent_a_directory(state):
    """A second one is told who has it; when the first is gone, it may."""
    lock = agent.hold(state)
    assert agent.present(state)
    with pytest.raises(DaemonRunningError, match=rf"{state}: has an agent already \(pid {os.getpid()} on .* since .*--dir"):
        agent.hold(state)
    lock.release()
    assert not agent.present(state)
    agent.hold(state).release()


def test_agent_with_other_sinks(host, attending):
    """A new sink of a later agent gets what is still there; one that had it all gets nothing twice."""
    journal, handed = host()
    old, slow = FakeSink("old"), FakeSink("slow")
    slow.down = True
    first = attending(old, slow)
    operation(journal, "a")
    until(lambda: old.had == ["a"])
    first.close(0.1)
    again, new = FakeSink("old"), FakeSink("new")
    attending(again, new)
    until(lambda: new.had == ["a"])
    assert handed.flush(20)
    assert again.had == []


def test_closed_again_and_again(host, attending):
    """A process that begins and ends to observe keeps no descriptor of it."""
    attending(FakeSink())
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        journal, handed = host()
        operation(journal, "a")
        assert handed.close(20)
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_removed_by_hand(host, attending, state):
    """A journal that vanishes is let go, the others are served, and who waits for the last process does not wait for ever."""
    journal, _ = host()
    other, handed = host()
    sink = FakeSink()
    drain = attending(sink)
    until(lambda: drain.custody.live() == 2)
    remove(journal.directory)
    until(lambda: drain.custody.live() == 1)
    operation(other, "a")
    assert handed.flush(20)
    assert sink.had == ["a"]
