"""What every process of a state directory is doing right now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ckpt_observe
from ckpt_observe.journal import spool
from ckpt_observe.journal.activity import read_activity
from ckpt_observe.journal.cursors import write_cursors
from ckpt_observe.journal.directory import list_page_files
from ckpt_observe.journal.pages import PAGE_SIZE


@pytest.fixture
def watch(tmp_path):
    watch = ckpt_observe.observe(exporters="local", dir=tmp_path / "state", pages_dir=tmp_path / "pages")
    yield watch
    watch.close()


def test_running_operations_and_their_task(watch, tmp_path):
    """An operation and its task are listed from begin to end, with name, task and start."""
    with ckpt_observe.task("train", id="r1"):
        with ckpt_observe.checkpoint("save", id="s1") as operation:
            operations = {each.kind: each for each in read_activity(tmp_path / "state").running}
            assert (operations["task"].name, operations["operation"].name) == ("train", "save")
            assert operations["operation"].attributes["checkpoint.task.name"] == "train"
            assert (operations["operation"].trace_id, operations["operation"].span_id) == (operation.trace_id, operation.span_id)
            assert 0 < operations["task"].start <= operations["operation"].start
        assert [each.kind for each in read_activity(tmp_path / "state").running] == ["task"]
    assert read_activity(tmp_path / "state").running == []


def test_dead_process_has_no_running_operations(watch, tmp_path):
    """A journal without owner counts as a dead process, and the operations in its pages do not count as running."""
    with ckpt_observe.checkpoint("save"):
        activity = read_activity(tmp_path / "state")
        assert (activity.live_processes, activity.dead_processes, len(activity.running)) == (1, 0, 1)
        journal = watch._journal
        journal._owner_lock.release()
        activity = read_activity(tmp_path / "state")
        assert (activity.live_processes, activity.dead_processes, activity.running) == (0, 1, [])


def test_adopted_journal_is_not_a_live_process(watch, tmp_path):
    """The process that adopts a journal holds its lock and has removed its pages: the journal still counts as a dead process."""
    with ckpt_observe.checkpoint("save"):
        for path in list_page_files(watch._journal.directory, watch._journal.about):
            Path(path).unlink()
        activity = read_activity(tmp_path / "state")
        assert (activity.live_processes, activity.dead_processes, activity.running) == (0, 1, [])


def test_delivered_records_do_not_wait(watch, tmp_path):
    """Records that every exporter has do not wait, although their file remains until it is full."""
    with ckpt_observe.checkpoint("save"):
        pass
    assert watch.flush(60)
    assert spool.size(watch._journal.directory) > 0
    assert read_activity(tmp_path / "state").waiting_bytes == 0


def test_records_wait_for_the_slowest_exporter(tmp_path):
    """Records that one of two exporters has not received wait, and no others do."""
    state, journal = tmp_path / "state", tmp_path / "state" / "journals" / "one"
    journal.mkdir(parents=True)
    writer = spool.Spool(str(journal))
    writer.append([b"[1]"])
    assert read_activity(state).waiting_bytes == spool.size(str(journal)), "nothing is delivered yet"
    first = spool.read(str(journal), spool.Cursor()).end
    writer.append([b"[2]", b"[3]"])
    last = spool.read(str(journal), first).end
    write_cursors(str(journal), {"fast": last, "slow": first})
    assert read_activity(state).waiting_bytes == spool.size(str(journal), first) > 0
    write_cursors(str(journal), {"fast": last, "slow": last})
    assert read_activity(state).waiting_bytes == 0
    writer.close()


def test_missing_state_directory(tmp_path):
    """A state directory that does not exist shows no activity."""
    activity = read_activity(tmp_path / "none")
    assert (activity.running, activity.live_processes, activity.dead_processes, activity.waiting_bytes) == ([], 0, 0, 0)


@pytest.mark.parametrize(
    "junk", [b"", b"\xff" * PAGE_SIZE * 3, os.urandom(PAGE_SIZE * 4), b'["begin",1]\n' * 2000], ids=["empty", "ones", "random", "lines"]
)
def test_damaged_page_file(watch, tmp_path, junk):
    """A damaged page file does not hide the operations in the other files."""
    with ckpt_observe.checkpoint("save"):
        Path(f"{watch._journal.about.pages}-99.pages").write_bytes(junk)
        assert [each.name for each in read_activity(tmp_path / "state").running] == ["save"]
        Path(f"{watch._journal.about.pages}-99.pages").unlink()


def test_unreadable_journal_is_skipped(watch, tmp_path):
    """A directory that is not a journal does not hide the others."""
    (tmp_path / "state" / "journals" / "000").mkdir(parents=True)
    with ckpt_observe.checkpoint("save"):
        assert [each.name for each in read_activity(tmp_path / "state").running] == ["save"]
