"""Only a dozen journals of dead processes are held at a time; the rest take turns, and no exporter waits for another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from ckpt_observe.delivery import adoption
from ckpt_observe.delivery.delivery import Delivery
from ckpt_observe.delivery.outbox import Outbox
from ckpt_observe.delivery.turns import Turns
from ckpt_observe.journal import claims
from ckpt_observe.journal import directory as journal_directory
from ckpt_observe.journal.journal import Journal
from tests.delivery.conftest import FakeExporter, record_operation, until

COUNT = 300
LIMITED_PROGRAM = """
import json, os, resource, sys, threading
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
from ckpt_observe.delivery import delivery as delivery_module
from tests.delivery.conftest import FakeExporter, until
delivery_module.REST_INTERVAL = 0.0  # else an exporter rests after each of the 25 turns
down, fine = FakeExporter("down"), FakeExporter("fine")
down.down = True
delivery = delivery_module.Delivery(Path(sys.argv[1]), [down, fine])
most = 0
send = fine.send
def counting(spans):
    global most
    most = max(most, len(os.listdir("/proc/self/fd")))
    send(spans)
fine.send = counting
delivery.start()
until(lambda: len(fine.ids) >= int(sys.argv[2]), 120)
with open(os.devnull):
    down.down = False
delivery.workers[0].retry_now()
is_delivered = delivery.close(120)
print(json.dumps({"most": most, "is_delivered": is_delivered, "down": sorted(down.ids), "fine": sorted(fine.ids)}))
"""


@pytest.fixture
def leave_journals(state, tmp_path):
    """`leave_journals(count, exporter_names)` leaves journals of ended processes, with one operation each. Returns the ids."""

    def leave(count, exporters=("fake",)):
        for number in range(count):
            journal = Journal(state, tmp_path / "pages", exporters, {"service.name": "t"})
            record_operation(journal, f"{number:03}")
            journal.pool.collect()
            journal.release()
        return [f"{number:03}" for number in range(count)]

    return leave


@pytest.mark.faults
def test_hundreds_of_journals_with_few_descriptors(state, leave_journals):
    """Under a limit of 96 descriptors, 300 leftover journals reach both exporters once, although one of them is down at first."""
    ids = leave_journals(COUNT, ("down", "fine"))
    command = [sys.executable, "-c", LIMITED_PROGRAM, str(state), str(COUNT)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "PYTHONPATH": os.getcwd()})
    assert run.returncode == 0, run.stderr
    result = json.loads(run.stdout)
    assert result["fine"] == ids
    assert result["down"] == ids
    assert result["is_delivered"]
    assert result["most"] < 2 * adoption.MAX_DEAD + 24
    assert "Too many open files" not in run.stderr
    assert list((state / "journals").iterdir()) == []


def test_scan_holds_a_dozen(state, leave_journals):
    """Further journals wait without descriptors, also in a daemon; their pages are recovered."""
    leave_journals(30)
    for live_exporters in (None, lambda _: ["fake"]):
        before = len(os.listdir("/proc/self/fd"))
        delivery = Delivery(state, [FakeExporter()], live_exporters=live_exporters)
        delivery.adoption.scan()
        assert len(delivery.adoption.outboxes()) == adoption.MAX_DEAD
        assert len(os.listdir("/proc/self/fd")) <= before + 2 * adoption.MAX_DEAD
        assert delivery.adoption.waiting()
        assert delivery.pending()
        delivery.adoption.release()


def test_daemon_releases_processes_that_die_together(state, tmp_path):
    """If many live processes die at once, a daemon does not keep two descriptors for each, and delivers all."""
    journals = [Journal(state, tmp_path / "pages", (), {}, "daemon") for _ in range(30)]
    for number, journal in enumerate(journals):
        record_operation(journal, str(number))
        journal.pool.collect()
    exporter = FakeExporter()
    delivery = Delivery(state, [exporter], live_exporters=lambda _: ["fake"])
    delivery.adoption.scan()
    assert delivery.adoption.live_count() == len(journals)
    for journal in journals:
        journal.release()
    delivery.adoption.scan()
    assert len(delivery.adoption.outboxes()) == adoption.MAX_DEAD
    delivery.start()
    until(lambda: not list((state / "journals").iterdir()))
    assert sorted(exporter.ids, key=int) == [str(number) for number in range(30)]
    delivery.close(20)


def test_journal_in_use_is_not_released(state, leave_journals):
    """During a delivery the journal stays; a released one is not delivered from."""
    leave_journals(1)
    (path,) = (state / "journals").iterdir()
    outbox = Outbox(str(path), {}, ["fake"])
    with outbox.used_by("fake") as is_usable:
        assert is_usable
        assert not outbox.retire()
    assert outbox.retire()
    with outbox.used_by("fake") as is_usable:
        assert not is_usable


def test_lack_of_descriptors_is_temporary(state, leave_journals, monkeypatch, caplog):
    """A journal that cannot be opened for lack of descriptors is tried again. No message advises to delete records."""
    leave_journals(1)
    exporter = FakeExporter()
    delivery = Delivery(state, [exporter])

    def fail(*_):
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(journal_directory.files, "read_json", fail)
        delivery.adoption.scan()
    assert delivery.adoption.outboxes() == []
    assert "records are kept" in caplog.text
    assert "remove" not in caplog.text
    delivery.start()
    assert delivery.close(60)
    assert exporter.ids == ["000"]


def test_journal_whose_turn_comes_is_pending(state, leave_journals, monkeypatch):
    """`flush()` does not miss a journal that another thread is taking over at this moment."""
    leave_journals(adoption.MAX_DEAD + 1)
    exporter = FakeExporter()
    delivery = Delivery(state, [exporter])
    delivery.adoption.scan()
    while delivery._deliver(delivery.workers[0]):
        pass
    claim_dead, answers = claims.claim_dead, []

    def ask_first(directory):
        answers.append(pool.submit(delivery.pending))
        wait(answers, 0.2)  # a correct answer comes later
        return claim_dead(directory)

    monkeypatch.setattr(claims, "claim_dead", ask_first)
    with ThreadPoolExecutor() as pool:
        assert delivery.adoption.take_turns()
        assert [answer.result() for answer in answers] == [True]
    delivery.adoption.release()


def test_slow_scan_does_not_forget_newer_journals(state, leave_journals, monkeypatch):
    """A journal that begins to wait while another thread scans an older list of journals keeps waiting."""
    leave_journals(adoption.MAX_DEAD)
    delivery = Delivery(state, [FakeExporter()])
    remove_unfinished = claims.remove_unfinished

    def leave_more(directories):
        monkeypatch.undo()
        remove_unfinished(directories)
        leave_journals(1)
        delivery.adoption.scan()
        assert delivery.adoption.waiting()

    monkeypatch.setattr(claims, "remove_unfinished", leave_more)
    delivery.adoption.scan()
    assert delivery.adoption.waiting()
    delivery.adoption.release()


def test_turns_skip_journals_that_no_idle_exporter_needs():
    """The next journal is the first that an idle exporter needs, or that nobody has looked at."""
    turns = Turns()
    turns.add("a", frozenset({"down"}))
    turns.add("b", frozenset({"down", "fine"}))
    turns.add("c")
    assert not turns.has_next(())
    assert [turns.take({"fine"}) for _ in range(3)] == ["b", "c", None]
    assert turns.take({"down"}) == "a"
    turns.add("d")
    turns.forget_removed()
    assert len(turns) == 0
