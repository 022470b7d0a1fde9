"""Locks that the kernel gives back when their holder dies."""

from __future__ import annotations

import os
import signal

import pytest

from ckpt_observe.journal.locks import Lock, _held


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "lock")


def test_one_holder(path):
    """Who comes second gets None at once; after a release it is free."""
    first = Lock.take(path)
    assert Lock.take(path) is None
    first.release()
    first.release()
    again = Lock.take(path, create=False)
    assert again is not None
    again.release()


def test_missing_file(path):
    """A lock that must be there already is not made."""
    with pytest.raises(FileNotFoundError):
        Lock.take(path, create=False)


def test_symlink_is_not_followed(path, tmp_path):
    """A link that somebody put in its place leads nowhere."""
    os.symlink(tmp_path / "elsewhere", path)
    with pytest.raises(OSError):
        Lock.take(path)
    assert not (tmp_path / "elsewhere").exists()


def child(work):
    """A child that has done `work`: its pid and a pipe; it lives until the pipe is closed or it is killed."""
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
    pid = child(lambda: Lock.take(path))
    assert Lock.take(path) is None
    kill(pid)
    lock = Lock.take(path)
    assert lock is not None
    lock.release()


def test_forked_children_forget(path):
    """A child does not keep the lock of a parent that is gone; and does not take it from one that lives."""
    lock = Lock.take(path)
    pid = child(lambda: None)
    assert Lock.take(path) is None
    lock.forget()  # as the parent's death would
    again = Lock.take(path)
    kill(pid)
    assert again is not None
    again.release()


def test_given_back_though_a_child_has_a_copy(path):
    """A child forked by another thread just as the lock was taken does not keep it: its copy is among none that it forgets."""
    lock = Lock.take(path)
    _held.discard(lock)  # as if it were not noted yet
    pid = child(lambda: None)
    assert Lock.take(path) is None
    lock.release()
    again = Lock.take(path)
    kill(pid)
    assert again is not None
    again.release()
