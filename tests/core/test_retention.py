"""Retention policies, and their effect on saves."""

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


def steps_kept_by(policy, infos):
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
def test_checkpoints_kept_by_each_policy(infos, policy, expected):
    """Each policy keeps the expected checkpoints, and always the newest."""
    assert steps_kept_by(policy, infos) == expected


@pytest.mark.parametrize("bases", [(), ("c1", "c4")])
@pytest.mark.parametrize(
    "policy", [KeepLast(0), KeepLast(1), KeepLast(3), KeepLast(99), KeepLast(2) | KeepEvery(4), KeepTagged("best") & KeepFor(9e9)]
)
def test_removals_after_a_save_equal_the_plan(infos, policy, bases):
    """The quick path that every save takes removes what the dry run lists, also with regard to the newest checkpoint and to bases."""
    infos[0] = msgspec.structs.replace(infos[0], bases=bases)
    planned = [decision.info.id for decision in plan(policy, infos, NOW) if not decision.keep]
    assert [decision.info.id for decision in removals(policy, infos, NOW)] == planned


def test_every_decision_has_a_reason(infos):
    """The dry run has a decision with a reason for each checkpoint."""
    decisions = plan(KeepLast(1) | KeepTagged("best"), infos, NOW)
    assert len(decisions) == 10
    assert {decision.info.id: decision.reason for decision in decisions if decision.keep} == {
        "c9": "the newest",
        "c2": "tagged 'best'",
    }
    assert {decision.reason for decision in decisions if not decision.keep} == {"not the newest, and not tagged 'best'"}


def test_prune_follows_the_plan():
    """`plan` deletes nothing, and `prune` then removes exactly what it listed."""
    checkpointer = Checkpointer("memory://")
    for step in range(6):
        checkpointer.save("t", {"n": step}, step=step)
    checkpointer.retention = KeepEvery(3)
    planned = [decision.info.id for decision in checkpointer.plan("t") if not decision.keep]
    assert len(checkpointer.list("t")) == 6
    assert [info.id for info in checkpointer.prune("t")] == planned
    assert [info.step for info in checkpointer.list("t")] == [5, 3, 0]


@pytest.mark.parametrize(
    ("policy", "argument"),
    [
        *((KeepLast, argument) for argument in (-1, 2.5, "3", None)),
        *((KeepEvery, argument) for argument in (0, -1, 2.5, "3")),
        *((KeepFor, argument) for argument in (-1, float("nan"), "3", None)),
        *((KeepWithin, argument) for argument in (-1, float("nan"), "3")),
    ],
)
def test_invalid_policy_is_refused(policy, argument):
    """An invalid argument raises when the policy is created; otherwise it would keep everything, or only the newest."""
    with pytest.raises(ConfigError, match=re.escape(repr(argument))):
        policy(argument)


def test_numpy_numbers_are_accepted():
    """A policy can be configured with numpy numbers."""
    numpy = pytest.importorskip("numpy")
    assert KeepLast(numpy.int64(3)).count == KeepWithin(numpy.float32(3)).size == 3


def test_keep_for_infinity(infos):
    """An infinite age keeps all checkpoints."""
    assert len(KeepFor(float("inf")).keep(infos, NOW)) == len(infos)


def test_failing_policy_never_fails_a_save(caplog):
    """If a custom policy raises, the save still succeeds, and hooks and the log report the failed prune."""

    class FailingPolicy(Retention):
        def keep(self, infos, now):
            raise ZeroDivisionError

    events = []
    checkpointer = Checkpointer("memory://", retention=FailingPolicy(), hooks=[events.append])
    info = checkpointer.save("agent", {"n": 1})
    assert checkpointer.list("agent") == [info]
    assert [(event.operation, event.moment) for event in events] == [("save", "before"), ("save", "after"), ("prune", "failed")]
    assert "Saved a checkpoint" in caplog.text


def test_slow_save_does_not_remove_a_newer_checkpoint(monkeypatch):
    """If two threads save one task, the checkpoint with the later time stays, whichever was written last."""
    checkpointer = Checkpointer("memory://", keep_last=1)
    checkpointer.save("t", "first")
    write_started, resume, put = threading.Event(), threading.Event(), checkpointer.store.put

    def slow_put(info, blob):
        if info.id == "older":
            write_started.set()
            resume.wait(10)
        put(info, blob)

    monkeypatch.setattr(checkpointer.store, "put", slow_put)
    thread = threading.Thread(target=checkpointer.save, args=("t", "older"), kwargs={"id": "older"})
    thread.start()
    assert write_started.wait(10)
    checkpointer.save("t", "newer", id="newer")
    resume.set()
    thread.join()
    assert checkpointer.load("t") == "newer"


def test_concurrent_save_is_not_counted_twice(monkeypatch):
    """If two threads save at once and one lists the checkpoint of the other, `keep_last=2` keeps two, not one."""
    checkpointer = Checkpointer("memory://", keep_last=2)
    retain = checkpointer._retain
    pending = []
    monkeypatch.setattr(checkpointer, "_retain", pending.append)
    for n in range(2):
        checkpointer.save("t", n)
    for info in pending:
        retain(info)
    assert len(checkpointer.list("t")) == 2


def test_keep_last_is_added_to_a_policy():
    """`keep_last` and a policy together keep what either keeps: tagged checkpoints stay."""
    checkpointer = Checkpointer("memory://", keep_last=1, retention=KeepTagged("best"))
    checkpointer.save("t", 1, id="tagged", tags=["best"])
    for n in range(3):
        checkpointer.save("t", n, id=f"c{n}")
    assert [info.id for info in checkpointer.list("t")] == ["c2", "tagged"]


def test_checkpoint_saved_while_a_policy_runs_stays():
    """A checkpoint that another thread saves while a policy is evaluated is not removed."""

    class KeepAll(Retention):
        def __init__(self):
            self.concurrent_ids = []

        def keep(self, infos, now):
            reasons = dict.fromkeys([info.id for info in infos], "all")
            while self.concurrent_ids:
                thread = threading.Thread(target=checkpointer.save, args=("t", 1), kwargs={"id": self.concurrent_ids.pop(0)})
                thread.start()
                thread.join()
            return reasons

    policy = KeepAll()
    checkpointer = Checkpointer("memory://", retention=policy)
    checkpointer.save("t", 1, id="first")
    policy.concurrent_ids = ["third", "fourth"]
    checkpointer.save("t", 1, id="second")
    assert [info.id for info in checkpointer.list("t")] == ["fourth", "third", "second", "first"]


def test_forked_child_does_not_wait_for_a_lock_of_its_parent(tmp_path):
    """A child that was forked while a thread of its parent was listing saves and prunes without waiting for that thread."""
    checkpointer = Checkpointer(tmp_path, keep_last=1)
    checkpointer.save("t", 0, id="from-parent")
    with checkpointer._listing._entry("t").lock:
        child = os.fork()
        if child == 0:
            try:
                signal.alarm(10)  # so that it does not wait forever
                checkpointer.save("t", 1, id="from-child")
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert [info.id for info in checkpointer.list("t")] == ["from-child"]


def test_quarantined_checkpoints_do_not_count(tmp_path):
    """Checkpoints that `verify` quarantined do not count for `keep_last`, so an older good one stays."""
    checkpointer = Checkpointer(tmp_path, keep_last=3)
    for n in range(3):
        checkpointer.save("t", n, id=f"c{n}")
    for n in (1, 2):
        (tmp_path / "t" / f"c{n}.ckpt").write_bytes(b"damaged")
    checkpointer.verify("t", quarantine=True)
    checkpointer.save("t", 3, id="c3")
    assert [info.id for info in checkpointer.list("t")] == ["c3", "c0"]
