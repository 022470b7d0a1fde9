"""Every state that a power failure can leave behind, by a model of a file system that loses as much as it may.

The model records the system calls of a save. A crash then preserves any subset of the directory changes that were not synced, and
nothing, half or all of a file that was not synced.
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
    """Records what happens to files and names in one directory, and does it."""

    def __init__(self, monkeypatch):
        self.log = []
        self.names = {}
        for name in ("open", "pwrite", "fsync", "link", "unlink"):
            monkeypatch.setattr(os, name, getattr(self, name)(getattr(os, name)))

    def open(self, real):
        def call(path, flags, mode=0o777, *, dir_fd=None):
            descriptor = real(path, flags, mode, dir_fd=dir_fd)
            self.names[descriptor] = path if flags & os.O_CREAT else f"unnamed, {descriptor}"
            if flags & os.O_CREAT:
                self.log.append(("name", path, path))
            return descriptor

        return call

    def pwrite(self, real):
        def call(descriptor, data, offset):
            self.log.append(("data", self.names[descriptor], (offset, bytes(data))))
            return real(descriptor, data, offset)

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
    """Yield the directories ({name: bytes}) that may exist after a crash following these calls."""
    contents, synced, pending, durable = {}, set(), [], {}
    for kind, name, value in log:
        if kind == "data":
            contents[name] = overwrite(contents.get(name, b""), *value)
        elif kind == "sync" and name == ".":
            for change in pending:
                apply(durable, change)
            pending = []
        elif kind == "sync":
            synced.add(name)
        else:
            pending.append((kind, name, value))
    for survives in itertools.product([False, True], repeat=len(pending)):
        names = dict(durable)
        for change in itertools.compress(pending, survives):
            apply(names, change)
        for share in (0, 0.5, 1):
            yield {
                name: data if source in synced else data[: int(len(data) * share)]
                for name, source in names.items()
                if (data := contents.get(source, b"")) is not None
            }


def overwrite(data, offset, new):
    return data[:offset].ljust(offset, b"\0") + new + data[offset + len(new) :]


def apply(names, change):
    kind, name, source = change
    if kind == "name":
        names[name] = source
    else:
        names.pop(name, None)


def outcomes(tmp_path, monkeypatch, recorder_type=Recorder):
    """Yield for every crash state at every moment whether the save had returned, and what a load returns."""
    checkpointer = Checkpointer(tmp_path / "real")
    checkpointer.save("t", {"n": 0}, id="old")
    with monkeypatch.context() as patch:
        recorder = recorder_type(patch)
        checkpointer.save("t", {"n": 1}, id="new")
    old = (tmp_path / "real" / "t" / "old.ckpt").read_bytes()
    for moment in range(len(recorder.log) + 1):
        for number, state in enumerate(crash_states(recorder.log[:moment])):
            directory = tmp_path / f"crash-{moment}-{number}"
            (directory / "t").mkdir(parents=True)
            for name, data in {"old.ckpt": old, **state}.items():
                (directory / "t" / name).write_bytes(data)
            yield moment == len(recorder.log), load_outcome(directory)


def load_outcome(directory):
    try:
        return Checkpointer(directory).load("t")["n"]
    except CheckpointNotFoundError:
        return "nothing"
    except CheckpointError:
        return "damaged"


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_every_crash_leaves_the_old_or_the_new_state(tmp_path, monkeypatch, unnamed_files, large):
    """The old state or the new one is intact; after the save has returned, the new one. This holds too if the header is written last."""
    if large:
        monkeypatch.setattr(digests, "LARGE", 1)
        monkeypatch.setattr(new_files, "_SMALL", 1)
    results = list(outcomes(tmp_path, monkeypatch))
    assert {number for returned, number in results if returned} == {1}
    assert {number for returned, number in results if not returned} == {0, 1}
    assert len(results) > 15


@pytest.mark.parametrize("omitted", ["directory", "file"])
def test_model_detects_a_missing_sync(tmp_path, monkeypatch, unnamed_files, omitted):
    """Control: without either sync, an acknowledged save is lost or damaged in some crash."""

    class WithoutSync(Recorder):
        def fsync(self, real_fsync):
            record = super().fsync(real_fsync)
            return lambda d: record(d) if os.path.isdir(f"/proc/self/fd/{d}") != (omitted == "directory") else None

    assert {number for returned, number in outcomes(tmp_path, monkeypatch, WithoutSync) if returned} != {1}
