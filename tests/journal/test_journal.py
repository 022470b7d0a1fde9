"""A journal as its owner uses it, from creation to removal."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ckpt_observe.errors import JournalError
from ckpt_observe.journal import claims, pool, recovery, spool
from ckpt_observe.journal.directory import UNFINISHED, read_about
from ckpt_observe.journal.journal import Journal
from ckpt_observe.support import files
from ckpt_observe.support.locks import FileLock
from tests.journal.conftest import begin, copied_then_delivered, end, open_below


def test_files_are_private(journal, state, tmp_path):
    """Only the owner can read the files and directories of a journal."""
    paths = [state, *state.rglob("*"), *(tmp_path / "pages").rglob("*")]
    assert len(paths) > 5
    assert {path.stat().st_mode & 0o077 for path in paths if path.name != "about.json"} == {0}


@pytest.mark.parametrize(("mode", "stored"), [("in-process", "thread"), ("companion", "companion"), ("daemon", "agent")])
def test_about_keeps_its_first_names(state, tmp_path, mode, stored):
    """`about.json` has the field names and modes of the first version, which would remove a journal whose mode it does not know."""
    journal = Journal(state, tmp_path / "pages", ["local"], {"service.name": "t"}, mode)
    about = json.loads(Path(journal.directory, "about.json").read_bytes())
    assert set(about) == {"version", "pid", "boot", "started", "pages", "sinks", "resource", "drain"}
    assert (about["drain"], about["sinks"]) == (stored, ["local"])
    assert read_about(journal.directory) == journal.about
    assert journal.about.delivery == mode
    journal.remove()


def test_remove_leaves_nothing(state, tmp_path):
    """After `remove`, no file and no open descriptor is left."""
    journal = Journal(state, tmp_path / "pages", ["local"], {})
    journal.take().append(begin())
    assert len(open_below(tmp_path)) >= 3, "two locks and the pages"
    journal.remove()
    assert list((state / "journals").iterdir()) == list((tmp_path / "pages").iterdir()) == []
    assert open_below(tmp_path) == []


def test_no_room_for_pages(state, tmp_path, monkeypatch):
    """If the pages directory is full, a JournalError names the setting to change, and nothing is left behind."""

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pool, "PageFile", full)
    with pytest.raises(JournalError, match=r"No space left.*CKPT_OBSERVE_PAGES_DIR"):
        Journal(state, tmp_path / "pages", [], {})
    assert list((state / "journals").iterdir()) == []
    assert open_below(tmp_path) == []


@pytest.mark.parametrize("failing", ["write", "rename"])
def test_no_room_for_the_journal(state, tmp_path, monkeypatch, failing):
    """If the disk is full when the journal is created, an OSError is raised, and no partial journal or open descriptor is left."""
    (state / "journals").mkdir(parents=True, mode=0o700)
    state.chmod(0o700)

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(OSError):
        Journal(state, tmp_path / "pages", [], {})
    monkeypatch.undo()
    assert list((state / "journals").iterdir()) == []
    assert open_below(tmp_path) == []


def test_released_can_be_claimed(state, tmp_path):
    """Another process can claim a journal that was released."""
    journal = Journal(state, tmp_path / "pages", [], {})
    journal.release()
    lock = FileLock.try_acquire(os.path.join(journal.directory, "owner.lock"), create=False)
    assert lock is not None
    lock.release()
    journal.remove()


def test_release_removes_empty_pages(state, tmp_path):
    """`release` removes pages whose operations are all in the spool, and keeps pages with an operation that could not be moved."""
    uncollected, collected = (Journal(state, tmp_path / "pages", [], {}) for _ in range(2))
    for journal in (uncollected, collected):
        page = journal.take()
        page.append(begin())
        journal.sync()
        page.finish(end())
    collected.pool.collect()
    for journal in (uncollected, collected):
        journal.release()
    assert [path.name for path in (tmp_path / "pages").iterdir()] == [os.path.basename(uncollected.about.pages) + "-00.pages"]
    for journal in (uncollected, collected):
        claim = claims.claim_dead(journal.directory)
        assert recovery.recover(claim) == 0
        assert len(list(spool.read_all(journal.directory))) == 1
        claim.release()
        files.remove_tree(journal.directory)


def test_copy_is_written_only_after_changes(journal):
    """`sync` replaces the copy of the pages on disk if a page has changed, and only then."""
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
def test_operation_ends_during_sync(journal, monkeypatch, when):
    """An operation that moves from its page to the spool during `sync` is in the copy or in the spool, so it survives a power failure."""
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


def test_owner_killed_during_remove(dead_journal, state):
    """If the owner dies in `remove` after deleting the pages, recovery does not report the operations of the older copy."""

    def work(journal):
        copied_then_delivered(journal)
        files.remove_tree = lambda _directory: os._exit(0)
        journal.remove()

    claim = claims.claim_dead(dead_journal(work))
    assert recovery.recover(claim) == 0
    assert list(spool.read_all(claim.directory)) == []
    claim.release()


def test_interrupted_removal_leaves_no_journal(journal, monkeypatch):
    """A process killed while it removes a journal leaves a directory that does not count as one, and that is cleaned up later."""

    def killed(directory, **_):
        os.unlink(os.path.join(directory, "about.json"))
        raise SystemExit

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(SystemExit):
        journal.remove()
    monkeypatch.undo()
    unfinished = journal.directory + UNFINISHED
    assert os.listdir(os.path.dirname(unfinished)) == [os.path.basename(unfinished)]
    os.utime(unfinished, (0, 0))
    claims.remove_unfinished([unfinished])
    assert os.listdir(os.path.dirname(unfinished)) == []


def test_sync_makes_names_durable(journal, state, monkeypatch):
    """After a power failure, a file that was synced also has its name: the journal, each new segment, and each new copy of the pages."""
    synced = []
    real = files.sync_directory
    monkeypatch.setattr(files, "sync_directory", lambda path: (synced.append(path), real(path)))
    journal.sync()
    assert {str(state), os.path.dirname(journal.directory)} <= set(synced)
    for change in (lambda: journal.spool.append([b"[]"]), lambda: journal.take().append(begin())):
        synced.clear()
        change()
        journal.sync()
        assert synced == [journal.directory]
        synced.clear()
        journal.sync()
        assert synced == []
