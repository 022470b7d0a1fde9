"""Retention policies, without a disk."""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
import threading

import msgspec
import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.retention import KeepEvery, KeepFor, KeepLast, KeepTagged, KeepWithin, Retention, plan, removals
from ckpt_observe.errors import ConfigError

NOW = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


@pytest.fixture
def infos():
    """Ten checkpoints, newest first, an hour apart, of 1000 bytes each."""
    checkpointer = Checkpointer("memory://")
    template = checkpointer.save("t", {})

    def info(step):
        created = NOW - dt.timedelta(hours=9 - step)
        return msgspec.structs.replace(
            template, id=f"c{step}", step=step, created=created, payload_size=1000, header_size=0, tags=("best",) if step == 2 else ()
        )

    return [info(step) for step in range(9, -1, -1)]


def kept(policy, infos):
    return [decision.info.step for decision in plan(policy, infos, NOW) if decision.keep]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (KeepLast(3), [9, 8, 7]),
        (KeepEvery(4), [9, 8, 4, 0]),
        (KeepFor(2 * 3600), [9, 8, 7]),
        (KeepWithin(2500), [9, 8]),
        (KeepTagged("best"), [9, 2]),
        (KeepLast(2) | KeepTagged("best"), [9, 8, 2]),
        (KeepLast(5) & KeepWithin(3000), [9, 8, 7]),
        (KeepLast(0), [9]),
        (KeepWithin(10), [9]),
    ],
    ids=["last", "every", "age", "size", "tag", "either", "both", "none", "too-small"],
)
def test_policy_keeps(infos, policy, expected):
    """Each policy keeps what it says, and the newest always stays."""
    assert kept(policy, infos) == expected


@pytest.mark.parametrize("bases", [(), ("c1", "c4")])
@pytest.mark.parametrize(
    "policy", [KeepLast(0), KeepLast(1), KeepLast(3), KeepLast(99), KeepLast(2) | KeepEvery(4), KeepTagged("best") & KeepFor(9e9)]
)
def test_what_goes_after_a_save_is_what_the_plan_says(infos, policy, bases):
    """The short way that every save takes, and the dry run, agree: on the newest, and on what another is built on, too."""
    infos[0] = msgspec.structs.replace(infos[0], bases=bases)
    planned = [decision.info.id for decision in plan(policy, infos, NOW) if not decision.keep]
    assert [decision.info.id for decision in removals(policy, infos, NOW)] == planned


def test_every_decision_has_a_reason(infos):
    """The dry run says for each checkpoint what happens and why."""
    decisions = plan(KeepLast(1) | KeepTagged("best"), infos, NOW)
    assert len(decisions) == 10
    assert {decision.info.id: decision.reason for decision in decisions if decision.keep} == {
        "c9": "one of the newest 1",
        "c2": "tagged 'best'",
    }
    assert {decision.reason for decision in decisions if not decision.keep} == {"not kept by (KeepLast(count=1) | KeepTagged(tag='best'))"}


def test_plan_deletes_nothing_and_prune_does_what_it_said():
    """The plan of a Checkpointer is exactly what its prune then does."""
    checkpointer = Checkpointer("memory://")
    for step in range(6):
        checkpointer.save("t", {"n": step}, step=step)
    checkpointer.retention = KeepEvery(3)
    planned = [decision.info.id for decision in checkpointer.plan("t") if not decision.keep]
    assert len(checkpointer.list("t")) == 6
    assert [info.id for info in checkpointer.prune("t")] == planned
    assert [info.step for info in checkpointer.list("t")] == [5, 3, 0]


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        *((KeepLast, wrong) for wrong in (-1, 2.5, "3", None)),
        *((KeepEvery, wrong) for wrong in (0, -1, 2.5, "3")),
        *((KeepFor, wrong) for wrong in (-1, float("nan"), "3", None)),
        *((KeepWithin, wrong) for wrong in (-1, float("nan"), "3")),
    ],
)
def test_an_impossible_policy_is_refused(policy, wrong):
    """When it is made, not when a save is done: it would keep everything, or nothing but the newest."""
    with pytest.raises(ConfigError, match=re.escape(repr(wrong))):
        policy(wrong)


def test_numbers_of_other_libraries_are_numbers():
    """A policy is often configured with what numpy gave."""
    numpy = pytest.importorskip("numpy")
    assert KeepLast(numpy.int64(3)).count == KeepWithin(numpy.float32(3)).size == 3


def test_for_ever(infos):
    """As long as nobody says."""
    assert len(KeepFor(float("inf")).keep(infos, NOW)) == len(infos)


def test_a_policy_that_fails_never_fails_a_save(caplog):
    """K5: the program's own policy is a part of tidying up. The save has succeeded, hooks and log say what has not."""

    class Broken(Retention):
        def keep(self, infos, now):
            raise ZeroDivisionError

    told = []
    checkpointer = Checkpointer("memory://", retention=Broken(), hooks=[told.append])
    info = checkpointer.save("agent", {"n": 1})
    assert checkpointer.list("agent") == [info]
    assert [(event.operation, event.moment) for event in told] == [("save", "before"), ("save", "after"), ("prune", "failed")]
    assert "Saved a checkpoint" in caplog.text


def test_slow_save_does_not_take_a_newer_one_away(monkeypatch):
    """K5: of two threads that save one task, the checkpoint that is newer by its time stays, whichever was written last."""
    checkpointer = Checkpointer("memory://", keep_last=1)
    checkpointer.save("t", "first")
    begun, go_on, put = threading.Event(), threading.Event(), checkpointer.store.put

    def slow(info, blob):
        if info.id == "older":
            begun.set()
            go_on.wait(10)
        put(info, blob)

    monkeypatch.setattr(checkpointer.store, "put", slow)
    thread = threading.Thread(target=checkpointer.save, args=("t", "older"), kwargs={"id": "older"})
    thread.start()
    assert begun.wait(10)
    checkpointer.save("t", "newer", id="newer")
    go_on.set()
    thread.join()
    assert checkpointer.load("t") == "newer"


def test_checkpoint_that_another_thread_listed_is_not_counted_twice(monkeypatch):
    """K5: two threads save at once, and the listing of one has the checkpoint of the other: two are kept, not one."""
    checkpointer = Checkpointer("memory://", keep_last=2)
    retain = checkpointer._retain
    waiting = []
    monkeypatch.setattr(checkpointer, "_retain", waiting.append)
    for n in range(2):
        checkpointer.save("t", n)
    for saved in waiting:
        retain(saved)
    assert len(checkpointer.list("t")) == 2


def test_keep_last_and_a_policy_keep_what_either_keeps():
    """K5: `keep_last` beside a policy does not silently replace it: what is tagged stays."""
    checkpointer = Checkpointer("memory://", keep_last=1, retention=KeepTagged("best"))
    checkpointer.save("t", 1, id="tagged", tags=["best"])
    for n in range(3):
        checkpointer.save("t", n, id=f"c{n}")
    assert [info.id for info in checkpointer.list("t")] == ["c2", "tagged"]


def test_what_another_thread_saves_while_a_policy_looks_stays():
    """K5: a policy looks at the checkpoints more than once; what another thread saves meanwhile is not what it did not keep."""

    class KeepAll(Retention):
        def __init__(self):
            self.meanwhile = []

        def keep(self, infos, now):
            kept = dict.fromkeys([info.id for info in infos], "all")
            while self.meanwhile:
                thread = threading.Thread(target=checkpointer.save, args=("t", 1), kwargs={"id": self.meanwhile.pop(0)})
                thread.start()
                thread.join()
            return kept

    policy = KeepAll()
    checkpointer = Checkpointer("memory://", retention=policy)
    checkpointer.save("t", 1, id="first")
    policy.meanwhile = ["third", "fourth"]
    checkpointer.save("t", 1, id="second")
    assert [info.id for info in checkpointer.list("t")] == ["fourth", "third", "second", "first"]


def test_forked_child_tidies_up_by_itself(tmp_path):
    """F17, K5: a child that was forked while another thread of its parent was listing saves and tidies up without waiting for that thread."""
    checkpointer = Checkpointer(tmp_path, keep_last=1)
    checkpointer.save("t", 0, id="from-parent")
    with checkpointer._listing._entry("t").lock:
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(10)  # it would wait for ever
                checkpointer.save("t", 1, id="from-child")
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert [info.id for info in checkpointer.list("t")] == ["from-child"]


def test_what_was_moved_aside_costs_no_other_its_place(tmp_path):
    """K5, L8: damaged checkpoints that verification moved away no longer count among those kept: an old good one stays for them."""
    checkpointer = Checkpointer(tmp_path, keep_last=3)
    for n in range(3):
        checkpointer.save("t", n, id=f"c{n}")
    for n in (1, 2):
        (tmp_path / "t" / f"c{n}.ckpt").write_bytes(b"damaged")
    checkpointer.verify("t", quarantine=True)
    checkpointer.save("t", 3, id="c3")
    assert [info.id for info in checkpointer.list("t")] == ["c3", "c0"]
