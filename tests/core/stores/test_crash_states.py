"""Every state that a power cut can leave behind, by a model of a file system that loses all it may (F9).

The model records what a save asks of the system. A crash may then keep any subset of the directory changes that were not
synced, and of a file that was not synced nothing, half or all.
"""

from __future__ import annotations

import itertools
import os

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.format import digests
from ckpt_observe.errors import CheckpointError, CheckpointNotFoundError
from ckpt_observe.support import new_files


class Recorder:
    """Notes what happens to files and names of one directory, while it really happens too."""

    def __init__(self, monkeypatch):
        self.log = []
        self.names = {}
        for name in ("open", "pwrite", "fsync", "link", "unlink"):
            monkeypatch.setattr(os, name, getattr(self, name)(getattr(os, name)))

    def open(self, real):
        def call(path, flags, mode=0o777, *, dir_fd=None):
            descriptor = real(path, flags, mode, dir_fd=dir_fd)
            self.names[descriptor] = path if flags & os.O_CREAT else f"without a name, {descriptor}"
            if flags & os.O_CREAT:
                self.log.append(("name", path, path))
            return descriptor

        return call

    def pwrite(self, real):
        def call(descriptor, data, place):
            self.log.append(("data", self.names[descriptor], (place, bytes(data))))
            return real(descriptor, data, place)

        return call

    def fsync(self, real):
        def call(descriptor):
            real(descriptor)
            self.log.append(("sync", "." if os.path.isdir(f"/proc/self/fd/{descriptor}") else self.names[descriptor], None))

        return call

    def link(self, real):
        def call(source, target, **options):
            real(source, target, **options)
            directory, _, descriptor = source.rpartition("/")
            self.log.append(("name", target, self.names[int(descriptor)] if directory else source))

        return call

    def unlink(self, real):
        def call(path, **options):
            real(path, **options)
            self.log.append(("gone", path, None))

        return call


def crash_states(log):
    """Directories ({name: bytes}) that may be found after a crash following the first calls of the log."""
    contents, synced, pending, settled = {}, set(), [], {}
    for kind, name, what in log:
        if kind == "data":
            contents[name] = overlaid(contents.get(name, b""), *what)
        elif kind == "sync" and name == ".":
            for change in pending:
                apply(settled, change)
            pending = []
        elif kind == "sync":
            synced.add(name)
        else:
            pending.append((kind, name, what))
    for kept in itertools.product([False, True], repeat=len(pending)):
        names = dict(settled)
        for change in itertools.compress(pending, kept):
            apply(names, change)
        for share in (0, 0.5, 1):
            yield {
                name: data if source in synced else data[: int(len(data) * share)]
                for name, source in names.items()
                if (data := contents.get(source, b"")) is not None
            }


def overlaid(data, place, more):
    return data[:place].ljust(place, b"\0") + more + data[place + len(more) :]


def apply(names, change):
    kind, name, source = change
    if kind == "name":
        names[name] = source
    else:
        names.pop(name, None)


def outcomes(tmp_path, monkeypatch, recording=Recorder):
    """(whether the save had returned, what a load gives) for every crash state at every moment."""
    checkpointer = Checkpointer(tmp_path / "real")
    checkpointer.save("t", {"n": 0}, id="old")
    with monkeypatch.context() as patch:
        recorder = recording(patch)
        checkpointer.save("t", {"n": 1}, id="new")
    old = (tmp_path / "real" / "t" / "old.ckpt").read_bytes()
    for moment in range(len(recorder.log) + 1):
        for number, state in enumerate(crash_states(recorder.log[:moment])):
            place = tmp_path / f"crash-{moment}-{number}"
            (place / "t").mkdir(parents=True)
            for name, data in {"old.ckpt": old, **state}.items():
                (place / "t" / name).write_bytes(data)
            yield moment == len(recorder.log), found(place)


def found(place):
    try:
        return Checkpointer(place).load("t")["n"]
    except CheckpointNotFoundError:
        return "nothing"
    except CheckpointError:
        return "damaged"


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_every_crash_leaves_the_old_or_the_new(tmp_path, monkeypatch, nameless, large):
    """F9, K7: the old state or the new one whole; after the save returned, the new one. So too where the header is written last."""
    if large:
        monkeypatch.setattr(digests, "LARGE", 1)
        monkeypatch.setattr(new_files, "_SMALL", 1)
    seen = list(outcomes(tmp_path, monkeypatch))
    assert {number for returned, number in seen if returned} == {1}
    assert {number for returned, number in seen if not returned} == {0, 1}
    assert len(seen) > 15


@pytest.mark.parametrize("forgotten", ["directory", "file"])
def test_model_catches_a_missing_sync(tmp_path, monkeypatch, nameless, forgotten):
    """Control for F9: without either sync, an acknowledged save is lost or damaged in some crash."""

    class Forgetful(Recorder):
        def fsync(self, real_fsync):
            note = super().fsync(real_fsync)
            return lambda d: note(d) if os.path.isdir(f"/proc/self/fd/{d}") != (forgotten == "directory") else None

    assert {number for returned, number in outcomes(tmp_path, monkeypatch, Forgetful) if returned} != {1}
