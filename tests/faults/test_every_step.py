"""Owner and adopter of a journal die after each of their system calls in turn: no record is lost, and none is wrong."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.journal import pool, recovery, spool
from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.page_reader import Heartbeat
from ckpt_observe.record.recorder import recorder
from tests.faults import worker
from tests.faults.oracle import LOSSES, Tally, compare
from tests.faults.test_kill import run_until

pytestmark = pytest.mark.faults

CALLS = ("open", "write", "pwrite", "fsync", "unlink", "rename", "replace", "rmdir", "close", "mkdir")


def die_after(number: int, oracle: int) -> None:
    """Kill this process after its next `number` system calls, not counting those to the oracle."""
    remaining = itertools.count(number, -1)

    def counted(call):
        def call_and_die(*args, **kwargs):
            result = call(*args, **kwargs)
            if args[0] != oracle and next(remaining) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call_and_die

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def deliver(delivery: Delivery) -> None:
    """Run one round of the delivery in this thread: with its own threads, the order of system calls would vary."""
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
        spool.SEGMENT_SIZE, pool.FIRST_PAGES, pool.MORE_PAGES = 1200, 2, 2
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


def adopt(directory: Path) -> None:
    delivery = Delivery(directory / "state", [worker.FileExporter(directory / "state")])
    deliver(delivery)
    delivery.close(1)


def adopter(number: int):
    def work(directory: Path, fd: int) -> None:
        die_after(number, fd)
        adopt(directory)
        os.kill(os.getpid(), signal.SIGKILL)

    return work


def remove_repeats(directory: Path) -> None:
    """Remove repeated spans. A delivery killed before it saved its cursor sends the same spans again, which is allowed."""
    path = directory / "state" / "spans.jsonl"
    if path.exists():
        path.write_bytes(b"\n".join(dict.fromkeys(path.read_bytes().splitlines())) + b"\n")


def fork_and_wait(directory: Path, work) -> bytes:
    """Fork a process that kills itself. Return its messages to the oracle."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            work(directory, writer)
        finally:
            os._exit(1)
    os.close(writer)
    messages = run_until(reader, 0.0, lambda: None)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    return messages


def kill_at_each_step(tmp_path: Path, until: Callable[[Tally], bool] = lambda _total: False) -> Tally:
    """Kill the owner after its first system call, its second, and so on, until it completes and removes its journal."""
    total, number, completed = Tally(), -1, False
    while not completed and not until(total):
        number += 1
        directory = tmp_path / str(number)
        (directory / "state").mkdir(parents=True, mode=0o700)
        messages = fork_and_wait(directory, owner(number))
        completed = b"> outer.3 end" in messages and not list((directory / "state" / "journals").glob("*"))
        fork_and_wait(directory, adopter(1 + number * 7 % 30))
        adopt(directory)
        remove_repeats(directory)
        total.update(compare(messages, directory))
        total["deaths"] += 1
        assert not list((directory / "pages").glob("*")), "no pages are left"
        shutil.rmtree(directory)
    return total


def test_killed_at_each_step(tmp_path):
    """Each save is delivered once, as the oracle saw it, wherever the owner and then the adopter of its journal were killed."""
    total = kill_at_each_step(tmp_path)
    print(f"\n{total}")
    assert total["deaths"] > 50, "there must have been many steps"
    assert total["in flight"] > 20
    assert {loss: total[loss] for loss in LOSSES} == dict.fromkeys(LOSSES, 0)


def test_control_detects_losses(tmp_path, monkeypatch):
    """Control: with a recovery that ignores the pages, saves are lost, and the test detects it."""
    monkeypatch.setattr(recovery, "read_operations", lambda _files: (Heartbeat(), {}))
    total = kill_at_each_step(tmp_path, until=lambda total: total["begun lost"] > 0)
    assert total["begun lost"] > 0
