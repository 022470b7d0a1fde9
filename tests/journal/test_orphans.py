"""Pages whose journal was deleted are removed after the death of their owner, and no others."""

from __future__ import annotations

import os
import shutil

import msgspec
import pytest

from ckpt_observe.journal.journal import Journal
from ckpt_observe.journal.orphans import OwnerNote, owner_note, remove_orphans
from ckpt_observe.journal.page_file import PageFile, read_owner_note
from ckpt_observe.journal.pages import PAGE_SIZE
from tests.journal.conftest import FakePool, begin


def running(journal):
    journal.take().append(begin())


def leave(state, pages):
    """Fork a process that dies during an operation, and return the directory of its journal."""
    child = os.fork()
    if not child:
        try:
            running(Journal(state, pages, ["local"], {}))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return max((state / "journals").iterdir(), key=lambda path: path.stat().st_mtime_ns)


@pytest.fixture
def pages(tmp_path):
    return tmp_path / "pages"


@pytest.mark.parametrize("deleted", ["journal", "journals", "state"])
@pytest.mark.parametrize("is_created_again", [True, False])
def test_deleted_journal_of_a_dead_process(state, pages, deleted, is_created_again):
    """If a journal or a directory above it was deleted, its pages are removed, also if another process has created the directory again."""
    journal = leave(state, pages)
    other = leave(state.parent / "other", pages)
    shutil.rmtree({"journal": journal, "journals": journal.parent, "state": state}[deleted])
    live = Journal(state, pages, ["local"], {}) if is_created_again else None
    before = len(list(pages.iterdir()))
    assert remove_orphans(str(pages)) == 1
    assert len(list(pages.iterdir())) == before - 1
    assert list(pages.glob(f"{other.name}*"))
    if live:
        live.remove()


def test_all_page_files_are_removed(state, pages):
    """All files of the owner are removed, the one with the note last."""
    journal = leave(state, pages)
    (pages / f"{journal.name}-01.pages").write_bytes(b"")
    shutil.rmtree(journal)
    assert remove_orphans(str(pages)) == 1
    assert list(pages.iterdir()) == []


def test_live_process_keeps_its_pages(state, pages):
    """The pages of a live process stay, although its journal was deleted."""
    journal = Journal(state, pages, ["local"], {})
    shutil.rmtree(journal.directory)
    child = os.fork()
    if not child:
        os._exit(remove_orphans(str(pages)))
    assert os.waitpid(child, 0)[1] == 0
    assert list(pages.iterdir())
    journal.remove()


def test_journals_that_are_not_visible(state, pages):
    """A journal on an unmounted disk, below a mount point that is gone, or of another container is not taken for deleted."""
    journal = leave(state, pages)
    note = msgspec.json.decode(owner_note(str(journal)), type=OwnerNote)
    devices = [device for device, _ in note.identities]
    shutil.rmtree(state)
    assert note.is_deleted()
    for changed in (0, len(devices) - 4):  # the root directory of a container; a directory above that was replaced by an empty mount point
        identities = [(device + (number == changed), inode) for number, (device, inode) in enumerate(note.identities)]
        assert not OwnerNote(note.journal, identities).is_deleted()
    mounted = [(device + (number >= len(devices) - 3), inode) for number, (device, inode) in enumerate(note.identities)]
    assert not OwnerNote(note.journal, mounted).is_deleted()


def test_quarantined_journal(state, pages):
    """The pages of a journal that was moved aside because it is damaged stay."""
    journal = leave(state, pages)
    (state / "damaged").mkdir()
    journal.rename(state / "damaged" / journal.name)
    assert remove_orphans(str(pages)) == 0


@pytest.mark.parametrize(
    "note", [b"", b"{", b"[]", b'{"journal": "x", "identities": []}', b'{"journal": "/\\u0000", "identities": [[1, 2]]}']
)
def test_damaged_notes(state, pages, note):
    """Files without a valid note stay: an earlier version may have written them."""
    journal = leave(state, pages)
    shutil.rmtree(journal)
    [path] = pages.iterdir()
    path.write_bytes(bytes(8) + note + bytes(5000))
    assert remove_orphans(str(pages)) == 0
    assert path.exists()


def test_long_path(tmp_path):
    """If the note does not fit into its page, it is left out."""
    file = PageFile(str(tmp_path / "x-00.pages"), 1, FakePool(), mapped=True)
    file.write_owner_note(b"x" * PAGE_SIZE)
    assert read_owner_note(file.path) == b""
    file.write_owner_note(b"x" * 100)
    assert read_owner_note(file.path) == b"x" * 100
    file.remove()
