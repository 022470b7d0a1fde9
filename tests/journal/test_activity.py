"""What every process does right now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ckpt_observe
from ckpt_observe.journal.activity import read_activity
from ckpt_observe.journal.pages import PAGE_SIZE


@pytest.fixture
def watch(tmp_path):
    watch = ckpt_observe.observe(exporters="local", dir=tmp_path / "state", pages_dir=tmp_path / "pages")
    yield watch
    watch.close()


def test_running_operations_are_seen_with_their_task(watch, tmp_path):
    """An operation and its task are there from their beginning to their end, with name, task and start."""
    with ckpt_observe.task("train", id="r1"):
        with ckpt_observe.checkpoint("save", id="s1") as operation:
            seen = {each.kind: each for each in read_activity(tmp_path / "state").running}
            assert (seen["task"].name, seen["operation"].name) == ("train", "save")
            assert seen["operation"].attributes["checkpoint.task.name"] == "train"
            assert (seen["operation"].trace_id, seen["operation"].span_id) == (operation.trace_id, operation.span_id)
            assert 0 < seen["task"].start <= seen["operation"].start
        assert [each.kind for each in read_activity(tmp_path / "state").running] == ["task"]
    assert read_activity(tmp_path / "state").running == []


def test_dead_process_runs_nothing(watch, tmp_path):
    """A journal without its owner counts as dead, and what it left in its pages does not run."""
    with ckpt_observe.checkpoint("save"):
        activity = read_activity(tmp_path / "state")
        assert (activity.live_processes, activity.dead_processes, len(activity.running)) == (1, 0, 1)
        journal = watch._journal
        journal._owner_lock.release()
        activity = read_activity(tmp_path / "state")
        assert (activity.live_processes, activity.dead_processes, activity.running) == (0, 1, [])


def test_no_state_is_nothing(tmp_path):
    """A directory in which nobody ever recorded."""
    activity = read_activity(tmp_path / "none")
    assert (activity.running, activity.live_processes, activity.dead_processes, activity.spooled_bytes) == ([], 0, 0, 0)


@pytest.mark.parametrize(
    "junk", [b"", b"\xff" * PAGE_SIZE * 3, os.urandom(PAGE_SIZE * 4), b'["begin",1]\n' * 2000], ids=["empty", "ones", "random", "lines"]
)
def test_pages_are_read_as_hostile_input(watch, tmp_path, junk):
    """Whatever a page file holds, what others run is still told."""
    with ckpt_observe.checkpoint("save"):
        Path(f"{watch._journal.about.pages}-99.pages").write_bytes(junk)
        assert [each.name for each in read_activity(tmp_path / "state").running] == ["save"]
        Path(f"{watch._journal.about.pages}-99.pages").unlink()


def test_journal_that_cannot_be_read_is_left_out(watch, tmp_path):
    """A directory that is no journal stops nobody."""
    (tmp_path / "state" / "journals" / "000").mkdir(parents=True)
    with ckpt_observe.checkpoint("save"):
        assert [each.name for each in read_activity(tmp_path / "state").running] == ["save"]
