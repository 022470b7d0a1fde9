"""Locks that the kernel releases when their holder dies."""

from __future__ import annotations

import os
import signal

import pytest

from ckpt_observe.support import forks, locks
from ckpt_observe.support.locks import FileLock, is_locked


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "lock")


def test_one_holder(path):
    """The second one to ask gets None at once. After a release the lock is free."""
    first = FileLock.try_acquire(path)
    assert FileLock.try_acquire(path) is None
    first.release()
    first.release()
    again = FileLock.try_acquire(path, create=False)
    assert again is not None
    again.release()


def test_two_threads_release(path, tmp_path, monkeypatch):
    """If two threads release a lock, a file that the host program has opened in between is neither unlocked nor closed."""
    lock = FileLock.try_acquire(path)
    real, descriptors = locks._unlock, []

    def meanwhile_another_releases(descriptor):
        descriptors.append(descriptor)
        if len(descriptors) == 1:
            lock.release()
        real(descriptor)

    monkeypatch.setattr(locks, "_unlock", meanwhile_another_releases)
    lock.release()
    assert len(descriptors) == 1
    assert not is_locked(path)


def test_is_locked(path):
    """Asking does not change anything, and our own lock counts."""
    lock = FileLock.try_acquire(path)
    assert is_locked(path)
    lock.release()
    assert not is_locked(path)
    assert not is_locked(path)
    with pytest.raises(FileNotFoundError):
        is_locked(path + "2")


def test_holder_is_described_in_the_file(path):
    """The latest description replaces an earlier, longer one."""
    lock = FileLock.try_acquire(path)
    lock.describe_holder("a long text about the first holder")
    lock.describe_holder("pid 7")
    with open(path, encoding="utf-8") as file:
        assert file.read() == "pid 7"
    lock.release()


def test_missing_file(path):
    """A lock file that must exist is not created."""
    with pytest.raises(FileNotFoundError):
        FileLock.try_acquire(path, create=False)


def test_symlink_is_not_followed(path, tmp_path):
    """A symbolic link in place of the lock file is refused."""
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(OSError):
        FileLock.try_acquire(path)
    assert not (tmp_path / "elsewhere").exists()


def child(work):
    """Fork a child that calls `work` and then waits to be killed. Return its pid."""
    ready_reader, ready_writer = os.pipe()
    pid = os.fork()
    if not pid:
        work()
        os.write(ready_writer, b"x")
        signal.pause()
    assert os.read(ready_reader, 1) == b"x"
    os.close(ready_reader)
    os.close(ready_writer)
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_death_releases(path):
    """kill -9 of the holder frees the lock."""
    pid = child(lambda: FileLock.try_acquire(path))
    assert FileLock.try_acquire(path) is None
    kill(pid)
    lock = FileLock.try_acquire(path)
    assert lock is not None
    lock.release()


def test_forked_child_does_not_hold_the_lock(path):
    """A child keeps no lock of a dead parent, and takes none from a living one."""
    lock = FileLock.try_acquire(path)
    pid = child(lambda: None)
    assert FileLock.try_acquire(path) is None
    lock.reset_after_fork()  # as the parent's death would
    again = FileLock.try_acquire(path)
    kill(pid)
    assert again is not None
    again.release()


def test_release_works_although_a_child_has_a_copy(path, monkeypatch):
    """A child that another thread forked before the lock was registered has an open copy. It does not keep the lock held."""
    monkeypatch.setattr(forks, "register", lambda *_: None)
    lock = FileLock.try_acquire(path)
    pid = child(lambda: None)
    assert FileLock.try_acquire(path) is None
    lock.release()
    again = FileLock.try_acquire(path)
    kill(pid)
    assert again is not None
    again.release()
