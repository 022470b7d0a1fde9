"""A journal from the first operation to its removal."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ckpt_observe.errors import JournalError
from ckpt_observe.journal import claims, pool, recovery, spool
from ckpt_observe.journal.directory import UNFINISHED
from ckpt_observe.journal.journal import Journal
from ckpt_observe.support import files
from ckpt_observe.support.locks import FileLock
from tests.journal.conftest import begin, copied_then_delivered, end, open_below


def test_private(journal, state, tmp_path):
    """Every file and directory can be read by its owner only."""
    paths = [state, *state.rglob("*"), *(tmp_path / "pages").rglob("*")]
    assert len(paths) > 5
    assert {path.stat().st_mode & 0o077 for path in paths if path.name != "about.json"} == {0}


def test_removed_without_a_trace(state, tmp_path):
    """When all is delivered nothing is left, in no directory, and no descriptor."""
    journal = Journal(state, tmp_path / "pages", ["local"], {})
    journal.take().append(begin())
    assert len(open_below(tmp_path)) >= 3, "two locks and the pages"
    journal.remove()
    assert list((state / "journals").iterdir()) == list((tmp_path / "pages").iterdir()) == []
    assert open_below(tmp_path) == []


def test_no_room_for_pages(state, tmp_path, monkeypatch):
    """No room in the pages directory: a typed error that says what to set, and nothing is left behind."""

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pool, "PageFile", full)
    with pytest.raises(JournalError, match=r"No space left.*CKPT_OBSERVE_PAGES_DIR"):
        Journal(state, tmp_path / "pages", [], {})
    assert list((state / "journals").iterdir()) == []
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("failing", ["open", "rename"])
def test_no_room_for_the_journal(state, tmp_path, monkeypatch, failing):
    """A disk that is full when the journal is made: an error, and no half journal and no descriptor is left."""
    (state / "journals").mkdir(parents=True, mode=0o700)
    state.chmod(0o700)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "open", full, raising=False) if failing == "open" else monkeypatch.setattr(os, "rename", full)
    with pytest.raises(OSError):
        Journal(state, tmp_path / "pages", [], {})
    monkeypatch.undo()
    assert list((state / "journals").iterdir()) == []
    assert open_below(tmp_path) == []


def test_released_can_be_claimed(state, tmp_path):
    """A journal that is released with work in it waits for whoever comes next."""
    journal = Journal(state, tmp_path / "pages", [], {})
    journal.release()
    lock = FileLock.try_acquire(os.path.join(journal.directory, "owner.lock"), create=False)
    assert lock is not None
    lock.release()
    journal.remove()


def test_released_takes_no_shared_memory(state, tmp_path):
    """What ended is in the spool: empty pages are not kept for whoever comes next. Those that the disk had no room for are."""
    kept, gone = (Journal(state, tmp_path / "pages", [], {}) for _ in range(2))
    for journal in (kept, gone):
        page = journal.take()
        page.append(begin())
        journal.sync()
        page.finish(end())
    gone.pool.collect()
    for journal in (kept, gone):
        journal.release()
    assert [path.name for path in (tmp_path / "pages").iterdir()] == [os.path.basename(kept.about.pages) + "-00.pages"]
    for journal in (kept, gone):
        claim = claims.claim_dead(journal.directory)
        assert recovery.recover(claim) == 0
        assert len(list(spool.read_all(journal.directory))) == 1
        claim.release()
        files.remove_tree(journal.directory)


def test_copy_of_what_is_in_flight(journal):
    """The copy on disk is written when something changed, and only then."""
    path = Path(journal.directory, "open.pages")
    page = journal.take()
    page.append(begin())
    journal.sync()
    first = path.stat().st_ino
    journal.sync()
    assert path.stat().st_ino == first
    page.marks[2] = 1
    journal.sync()
    assert path.stat().st_ino != first or page.read_image() in path.read_bytes()
    assert page.read_image() in path.read_bytes()


@pytest.mark.parametrize("when", ["while it syncs", "just before"])
def test_ends_while_the_copy_is_made(journal, monkeypatch, when):
    """An operation that goes from its page to the spool while both are made safe is in one of them, and survives the machine."""
    page, fsync = journal.take(), os.fsync
    page.append(begin())
    journal.sync()

    def ends():
        page.finish(end())
        if when == "while it syncs":
            journal.pool.collect()

    def sync_then_end(fd):
        fsync(fd)
        monkeypatch.undo()
        ends()

    if when == "just before":
        ends()
    else:
        journal.spool.append([b"[]"])
        monkeypatch.setattr(os, "fsync", sync_then_end)
    journal.sync()
    assert begin()[:-1] in Path(journal.directory, "open.pages").read_bytes()


def test_killed_while_it_is_removed(dead_journal, state):
    """A journal whose remover died when the pages were gone: the copy of what was in flight is not believed."""

    def work(journal):
        copied_then_delivered(journal)
        files.remove_tree = lambda _directory: os._exit(0)
        journal.remove()

    claim = claims.claim_dead(dead_journal(work))
    assert recovery.recover(claim) == 0
    assert list(spool.read_all(claim.directory)) == []
    claim.release()


def test_removed_all_at_once(journal, monkeypatch):
    """Who dies while it removes a journal leaves nothing that looks like one: what is left is swept later, as one never finished."""

    def killed(directory, **_):
        os.unlink(os.path.join(directory, "about.json"))
        raise SystemExit

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(SystemExit):
        journal.remove()
    monkeypatch.undo()
    left = journal.directory + UNFINISHED
    assert os.listdir(os.path.dirname(left)) == [os.path.basename(left)]
    os.utime(left, (0, 0))
    claims.remove_unfinished([left])
    assert os.listdir(os.path.dirname(left)) == []
