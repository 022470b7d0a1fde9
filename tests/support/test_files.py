"""Files that are replaced as a whole, and new files that are durable."""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import nullcontext

import pytest

from ckpt_observe.support import files, new_files


class Content:
    """Two pieces; the second is ready first."""

    def __init__(self, first, second):
        self.pieces = [first, second]

    def __len__(self):
        return sum(map(len, self.pieces))

    def joined(self):
        return b"".join(self.pieces)

    def as_ready(self):
        yield len(self.pieces[0]), self.pieces[1]
        yield 0, self.pieces[0]


@pytest.fixture
def directory(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


def test_replace_file(tmp_path):
    """The file has the new content and mode, and nothing else is left in the directory."""
    path = tmp_path / "file"
    files.replace_file(str(path), b"old", sync=False)
    files.replace_file(str(path), b"newest", sync=True, mode=0o644)
    assert path.read_bytes() == b"newest"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("sync", [True, False])
def test_failed_replacement_keeps_the_old_file(tmp_path, monkeypatch, sync):
    """On a full disk the old content stays, and the temporary file takes no space."""
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(*_args):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(files.os, "fsync" if sync else "replace", fail)
    with pytest.raises(OSError, match="full"):
        files.replace_file(str(path), b"new", sync=sync)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_synced_before_and_after_it_is_named(tmp_path, monkeypatch):
    """The order that a crash needs: content on disk, then the name, then the name on disk."""
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(files.os, name, lambda *args, name=name, real=real: (calls.append(name), real(*args))[1])
    files.replace_file(str(tmp_path / "file"), b"x", sync=True)
    files.replace_file(str(tmp_path / "file"), b"x", sync=False)
    assert calls == ["fsync", "replace", "fsync", "replace"]


def test_remove_tree(tmp_path):
    """A directory and its content are removed; a missing one is ignored."""
    tree = tmp_path / "tree"
    files.make_directory(str(tree / "deep" / "deeper"))
    (tree / "file").write_bytes(b"x")
    files.remove_tree(str(tree))
    files.remove_tree(str(tree))
    assert os.listdir(tmp_path) == []


def test_make_directory_syncs_every_parent(tmp_path, monkeypatch):
    """Each new directory is durable in its parent before the next one is created in it. An existing one is synced, too."""
    synced = []
    monkeypatch.setattr(files, "sync_directory", synced.append)
    files.make_directory(f"{tmp_path}/a/b")
    files.make_directory(f"{tmp_path}/a/b")
    assert synced == [f"{tmp_path}", f"{tmp_path}/a", f"{tmp_path}/a"]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_identity_changes_with_the_file(tmp_path):
    """A file that was removed or replaced is another one, whatever its content."""
    path = tmp_path / "file"
    assert files.identity(path) is None
    path.write_bytes(b"x")
    with path.open("rb"):  # keeps the inode from being used again
        identity = files.identity(path)
        assert files.identity(path) == identity
        files.replace_file(str(path), b"x", sync=False)
        assert files.identity(path) not in (identity, None)


def test_move_within_an_open_directory(tmp_path, directory):
    """Names are relative to the descriptor."""
    (tmp_path / "a").write_bytes(b"x")
    files.move("a", "b", directory=directory)
    assert os.listdir(tmp_path) == ["b"]


@pytest.mark.parametrize("size", [0, 10, 64 * 1024, 200_000])
def test_read(tmp_path, size):
    """All bytes, or those of a range; a range beyond the end is shorter."""
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    file = os.open(tmp_path / "file", os.O_RDONLY)
    assert bytes(files.read_whole(file)) == data
    assert bytes(files.read_range(file, 3, 5)) == data[3:8]
    assert bytes(files.read_range(file, size, 5)) == b""
    os.close(file)


@pytest.fixture(params=["unnamed", "named"])
def system(request, monkeypatch):
    """A system with unnamed files, and one without."""
    if request.param == "named":
        monkeypatch.setattr(new_files, "_UNNAMED", os.O_WRONLY)


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("size", [10, 200_000])
def test_create_files(tmp_path, directory, size):
    """Complete files, private, without temporary ones; pieces may come in any order."""
    new_files.create_files(directory, [("a", Content(b"1" * size, b"2" * size)), ("b", Content(b"", b"x"))])
    assert (tmp_path / "a").read_bytes() == b"1" * size + b"2" * size
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


@pytest.mark.usefixtures("system")
def test_a_taken_name_creates_nothing(tmp_path, directory):
    """The existing file stays, and files created before it in the same call are removed."""
    (tmp_path / "b").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        new_files.create_files(directory, [("a", Content(b"", b"x")), ("b", Content(b"", b"x"))])
    assert os.listdir(tmp_path) == ["b"]
    assert (tmp_path / "b").read_bytes() == b"old"


def test_abandoned_files_are_removed(tmp_path, directory):
    """Temporary files of a crash go after an hour; younger ones and other files stay."""
    for name in (".old.tmp", ".young.tmp", "other.tmp", ".other"):
        (tmp_path / name).write_bytes(b"x")
    for name in (".old.tmp", "other.tmp", ".other"):
        os.utime(tmp_path / name, (time.time() - 4000,) * 2)
    new_files.remove_abandoned(directory)
    assert sorted(os.listdir(tmp_path)) == [".other", ".young.tmp", "other.tmp"]


@pytest.mark.parametrize(("number", "is_ignored"), [(errno.EINVAL, True), (errno.EOPNOTSUPP, True), (errno.EIO, False)])
def test_directory_that_cannot_be_synced(tmp_path, monkeypatch, number, is_ignored):
    """File systems that cannot sync a directory are used nevertheless. A failed sync is an error."""

    def fail(_file):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.os, "fsync", fail)
    with nullcontext() if is_ignored else pytest.raises(OSError):
        files.sync_directory(str(tmp_path))
