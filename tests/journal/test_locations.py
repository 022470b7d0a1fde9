"""Private directories, and file systems on which pages can be mapped."""

from __future__ import annotations

import os

import pytest

from ckpt_observe.errors import JournalError
from ckpt_observe.journal import locations
from ckpt_observe.journal.locations import file_system, is_on_volume, page_places, private_directory


def test_new_directory_is_private(tmp_path):
    """A directory that we create has mode 0700."""
    directory = private_directory(tmp_path / "a" / "b")
    assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_directory_writable_by_others(tmp_path, mode):
    """A directory that others can write to is refused, and the error says what to do."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(JournalError, match=r"open: .*writable by others; set CKPT_OBSERVE_DIR"):
        private_directory(tmp_path / "open")


def test_not_a_directory(tmp_path):
    """A file or a symbolic link in place of the directory is refused."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(JournalError, match="CKPT_OBSERVE_DIR"):
        private_directory(tmp_path / "file")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(JournalError, match="symbolic link"):
        private_directory(tmp_path / "link")


def test_directory_that_cannot_be_created():
    """If the directory cannot be created, the error names the setting to change."""
    nowhere = locations.Path("/proc/none/such")
    with pytest.raises(JournalError, match="cannot be created"):
        private_directory(nowhere)
    with pytest.raises(JournalError, match="CKPT_OBSERVE_PAGES_DIR"):
        page_places(nowhere, nowhere)


def test_file_systems(tmp_path):
    """The type is that of the innermost mount that contains the path."""
    assert file_system(locations.Path("/proc/self")) == "proc"
    assert file_system(tmp_path)


def test_pages_on_a_network_file_system(tmp_path, monkeypatch):
    """On a file system that may lose allocated blocks, pages are not mapped."""
    monkeypatch.setattr(locations, "file_system", lambda path: "nfs4")
    assert page_places(tmp_path, tmp_path / "pages")[0] == (tmp_path / "pages", False)
    monkeypatch.setattr(locations, "file_system", lambda path: "tmpfs")
    assert page_places(tmp_path, tmp_path / "pages")[0] == (tmp_path / "pages", True)


def test_no_shared_memory(tmp_path, monkeypatch):
    """Without shared memory, or with too little of it, pages are stored in the state directory."""
    monkeypatch.setattr(locations, "SHARED_MEMORY", tmp_path / "none")
    assert [place.directory for place in page_places(tmp_path, None)] == [tmp_path / "pages"]
    monkeypatch.setattr(locations, "SHARED_MEMORY", locations.Path("/dev/shm"))
    monkeypatch.setattr(locations, "LEAST_FREE", 1 << 62)
    assert [place.directory for place in page_places(tmp_path, None)] == [tmp_path / "pages"]
    assert os.path.isdir(tmp_path / "pages")


@pytest.mark.parametrize("is_private", [True, False])
@pytest.mark.parametrize("is_volume", [True, False])
def test_shared_memory_that_ends_with_the_container(tmp_path, monkeypatch, is_private, is_volume):
    """Only if the state directory outlives the shared memory, pages are stored there. Else they are its second place."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(locations, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(locations, "LEAST_FREE", 0)
    monkeypatch.setattr(locations, "file_system", lambda path: "tmpfs")
    monkeypatch.setattr(locations, "has_private_shared_memory", lambda: is_private)
    monkeypatch.setattr(locations, "is_on_volume", lambda path: is_volume)
    first = [] if is_private and is_volume else [tmp_path / "shm" / f"ckpt_observe-{os.geteuid()}"]
    assert [place.directory for place in page_places(tmp_path, None)] == [*first, tmp_path / "pages"]


def test_volumes():
    """A path on a mount of its own is on a volume; the root directory is not."""
    assert is_on_volume(locations.Path("/proc/self"))
    assert not is_on_volume(locations.Path("/"))
