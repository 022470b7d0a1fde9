"""Processes that die at each system call of their journal in turn, and whoever finds what they left does too: nothing is lost or told wrong."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from pathlib import Path

import pytest

from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.journal import pool, recovery, spool
from ckpt_observe.journal.journal import Journal
from ckpt_observe.record.recorder import recorder
from tests.faults import worker
from tests.faults.oracle import LOSSES, Tally, compare
from tests.faults.test_kill import run_until

pytestmark = pytest.mark.faults

CALLS = ("open", "write", "pwrite", "fsync", "unlink", "rename", "replace", "rmdir", "close", "mkdir")


def die_after(number: int, oracle: int) -> None:
    """Just after that one of the system calls that this process makes from now on; those to the oracle are not counted."""
    left = itertools.count(number, -1)

    def counted(call):
        def call_and_die(*args, **kwargs):
            result = call(*args, **kwargs)
            if args[0] != oracle and next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call_and_die

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def deliver(delivery: Delivery) -> None:
    """A round of the delivery without its threads: they would make the calls come in another order each time."""
    delivery._collect()
    if delivery._collector:
        delivery._collector.sync()
    scan(delivery)
    while delivery._deliver(delivery.workers[0]):
        pass
    scan(delivery)


def scan(delivery: Delivery) -> None:
    delivery.adoption.scan()
    delivery.adoption.maintain()


def owner(number: int):
    def work(directory: Path, fd: int) -> None:
        oracle = worker.Oracle(fd)
        spool.SEGMENT_SIZE, pool.PAGES_PER_FILE = 1200, 2
        die_after(number, fd)
        journal = Journal(directory / "state", directory / "pages", ["local"], {})
        delivery = Delivery(directory / "state", [worker.FileExporter(directory / "state")], journal)
        recorder.start(journal.take)
        for save in range(4):
            with oracle.operation(key := f"outer.{save}") as outer, oracle.phase(key, outer, "write"):
                with oracle.operation(f"inner.{save}"):
                    pass
                deliver(delivery)
            if save % 2:
                deliver(delivery)
        recorder.stop()
        delivery.close(1)
        os.kill(os.getpid(), signal.SIGKILL)

    return work


def find(directory: Path) -> None:
    delivery = Delivery(directory / "state", [worker.FileExporter(directory / "state")])
    deliver(delivery)
    delivery.close(1)


def finder(number: int):
    def work(directory: Path, fd: int) -> None:
        die_after(number, fd)
        find(directory)
        os.kill(os.getpid(), signal.SIGKILL)

    return work


def told_once(directory: Path) -> None:
    """An exporter that was killed with what it had, before that was noted, is given it again: the same, so that it is harmless."""
    path = directory / "state" / "spans.jsonl"
    if path.exists():
        path.write_bytes(b"\n".join(dict.fromkeys(path.read_bytes().splitlines())) + b"\n")


def dying(directory: Path, work) -> bytes:
    """What a process told the oracle until it died by itself."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            work(directory, writer)
        finally:
            os._exit(1)
    os.close(writer)
    heard = run_until(reader, 0.0, lambda: None)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    return heard


def at_each_step(tmp_path: Path) -> Tally:
    """Until it comes through, and has removed its journal."""
    total, number, through = Tally(), -1, False
    while not through:
        number += 1
        directory = tmp_path / str(number)
        (directory / "state").mkdir(parents=True, mode=0o700)
        heard = dying(directory, owner(number))
        through = b"> outer.3 end" in heard and not list((directory / "state" / "journals").glob("*"))
        dying(directory, finder(1 + number * 7 % 30))
        find(directory)
        told_once(directory)
        total.update(compare(heard, directory))
        total["deaths"] += 1
        assert not list((directory / "pages").glob("*")), "no pages are left"
        shutil.rmtree(directory)
    return total


def test_dies_at_each_step(tmp_path):
    """Of the owner, and of who finds its journal: each save is there, once, as the oracle saw it."""
    total = at_each_step(tmp_path)
    print(f"\n{total}")
    assert total["deaths"] > 50, "the rig must have worked"
    assert total["in flight"] > 20
    assert {loss: total[loss] for loss in LOSSES} == dict.fromkeys(LOSSES, 0)


def test_control_must_lose(tmp_path, monkeypatch):
    """The same rig with a recovery that does not find the pages loses saves: so the rig can see a loss."""
    monkeypatch.setattr(recovery, "_read_operations", lambda _files: (0, {}))
    total = at_each_step(tmp_path)
    assert total["begun lost"] > 0
