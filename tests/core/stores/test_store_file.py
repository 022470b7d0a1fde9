"""The file store: the contract, and behaviour specific to files."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from urllib.parse import quote

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.format.names import to_file_name
from ckpt_observe.core.stores import file, header_cache
from ckpt_observe.core.stores.file import FileStore
from ckpt_observe.errors import AccessError, CapacityError, CheckpointError, ConfigError, ConflictError, IntegrityError, StorageError
from ckpt_observe.testing.stores import StoreContract


def path_of(store, task, id):
    return os.path.join(store._root, to_file_name(task), to_file_name(id) + ".ckpt")


class TestFileStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path):
        return FileStore(str(tmp_path / "deep" / "down"))

    def raw_read(self, store, task, id):
        with open(path_of(store, task, id), "rb") as file:
            return file.read()

    def raw_write(self, store, task, id, data):
        with open(path_of(store, task, id), "wb") as file:
            file.write(data)

    def another(self, store):
        return FileStore(store.location)

    def test_modes_are_private(self, store, checkpointer):
        """Only the owner can read a state."""
        info = checkpointer.save("t", {"n": 1})
        path = path_of(store, "t", info.id)
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700

    def test_order_of_system_calls_is_durable(self, store, checkpointer, monkeypatch, unnamed_files):
        """A file is synced before it gets its name and its directory after, and each new ancestor is synced in its parent.

        A second process cannot know whether the first one synced the directory that it created, so it syncs the parent once.
        """
        calls = []

        def watch(name, describe):
            original = getattr(os, name)

            def call(*args, **kwargs):
                result = original(*args, **kwargs)
                calls.append(describe(*args))
                return result

            monkeypatch.setattr(os, name, call)

        path = "/proc/self/fd/{}".format
        watch("fsync", lambda fd: "fsync " + (os.path.basename(os.readlink(path(fd))) if os.path.isdir(path(fd)) else "file"))
        watch("link", lambda *_: "link")
        watch("mkdir", lambda directory, *_: "mkdir " + os.path.basename(directory))
        checkpointer.save("t", {"n": 1})
        parent = os.path.basename(os.path.dirname(os.path.dirname(store._root)))
        assert calls == [
            "mkdir deep",
            f"fsync {parent}",
            "mkdir down",
            "fsync deep",
            "mkdir t",
            "fsync down",
            "fsync file",
            "link",
            "fsync t",
        ]
        another = Checkpointer(self.another(store))
        for before in ["fsync down"], []:
            calls.clear()
            another.save("t", {"n": 2})
            assert calls == [*before, "fsync file", "link", "fsync t"]

    @pytest.mark.parametrize("call", ["pwrite", "fsync", "link"])
    @pytest.mark.parametrize(
        ("number", "kind", "code"),
        [
            (errno.ENOSPC, CapacityError, "storage.no_space"),
            (errno.EDQUOT, CapacityError, "storage.quota"),
            (errno.EIO, StorageError, "storage.io"),
            (errno.EROFS, StorageError, "storage.read_only"),
            (errno.EACCES, AccessError, "storage.permission"),
        ],
    )
    def test_failed_write_raises_and_leaves_nothing(self, store, checkpointer, monkeypatch, unnamed_files, call, number, kind, code):
        """An error at any system call has the right class. The old checkpoint loads, no file remains, and the next save works."""
        checkpointer.save("t", {"n": 1}, id="old")

        def fail(*args, **kwargs):
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(kind) as caught:
                checkpointer.save("t", {"n": 2}, id="new")
        assert caught.value.code == code
        assert isinstance(caught.value.__cause__, OSError)
        assert os.listdir(os.path.dirname(path_of(store, "t", "old"))) == ["old.ckpt"]
        assert checkpointer.load("t") == {"n": 1}
        checkpointer.save("t", {"n": 2}, id="new")
        assert checkpointer.load("t") == {"n": 2}

    def test_short_writes_are_completed(self, checkpointer, monkeypatch):
        """If the system writes only a few bytes per call, all bytes are written nevertheless."""
        original = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: original(fd, data[:7], offset))
        checkpointer.save("t", {"text": "x" * 100})
        assert checkpointer.load("t") == {"text": "x" * 100}

    def test_abandoned_temporary_files_are_removed(self, store, checkpointer):
        """Old temporary files of killed processes are removed; a young one may still be in use."""
        checkpointer.save("t", {"n": 1})
        directory = os.path.join(store._root, "t")
        for name, age in (("old", 7200), ("young", 0)):
            path = os.path.join(directory, f".{name}.tmp")
            with open(path, "w"):
                os.utime(path, (time.time() - age,) * 2)
        Checkpointer(self.another(store)).save("t", {"n": 2})
        assert sorted(name for name in os.listdir(directory) if name.endswith(".tmp")) == [".young.tmp"]

    def test_memory_of_prepared_tasks_is_bounded(self, checkpointer, monkeypatch):
        """Only a limited number of tasks is remembered, and a directory that was removed is created again."""
        monkeypatch.setattr(file, "_MAX_PREPARED", 3)
        for n in range(8):
            checkpointer.save(f"t{n}", {"n": n})
            assert len(checkpointer.store._prepared) <= 3
        shutil.rmtree(os.path.join(checkpointer.store._root, "t7"))
        checkpointer.save("t7", {"n": 9})
        assert checkpointer.load("t7") == {"n": 9}

    def test_links_are_not_followed(self, store, checkpointer, tmp_path):
        """A symbolic link in place of a checkpoint is refused."""
        checkpointer.save("t", {"n": 1})
        secret = tmp_path / "secret"
        secret.write_text("no")
        os.symlink(secret, os.path.join(store._root, "t", "link.ckpt"))
        with pytest.raises(CheckpointError):
            checkpointer.load("t", "link")

    def test_conflict_in_a_batch_names_the_id(self, checkpointer):
        """The error names the id that exists, and nothing of the batch is stored."""
        checkpointer.save("t", {"n": 1}, id="second")
        with pytest.raises(ConflictError, match="'second'"), checkpointer.batch() as batch:
            batch.save("t", {"n": 2}, id="first")
            batch.save("t", {"n": 3}, id="second")
        assert [info.id for info in checkpointer.list("t")] == ["second"]

    def test_directory_is_ignored(self, store, checkpointer):
        """A directory named like a checkpoint does not prevent the others from being listed, loaded and verified."""
        info = checkpointer.save("t", {"n": 1})
        os.mkdir(os.path.join(store._root, "t", "zzz.ckpt"))
        assert [listed.id for listed in checkpointer.list("t")] == [info.id] == list(store.ids("t"))
        assert checkpointer.load("t") == {"n": 1}
        assert [finding.good for finding in checkpointer.verify()] == [True]

    def test_link_is_ignored(self, store, checkpointer):
        """A link to the latest checkpoint, as people create them, does not prevent listing, loading and verifying the task."""
        info = checkpointer.save("t", {"n": 1})
        os.symlink(f"{info.id}.ckpt", os.path.join(store._root, "t", "latest.ckpt"))
        assert store.list("t") == [info]
        assert (store.ids("t"), store.newest("t")) == ((info.id,), info.id)
        assert checkpointer.load("t") == {"n": 1}
        assert [finding.good for finding in checkpointer.verify()] == [True]

    def test_range_larger_than_memory_is_a_capacity_error(self, store, checkpointer):
        """A sparse file may claim a tebibyte: reading it raises CapacityError instead of MemoryError."""
        info = checkpointer.save("t", {"n": 1})
        with pytest.raises(CapacityError) as caught:
            store.get_range("t", info.id, 0, 1 << 62)
        assert caught.value.code == "memory.exhausted"

    def test_pipe_does_not_block(self, store, checkpointer):
        """A pipe in place of a checkpoint counts as damaged; a listing does not wait for a writer."""
        checkpointer.save("t", {"n": 1})
        os.mkfifo(pipe := os.path.join(store._root, "t", "pipe.ckpt"))
        listed = []
        listing = threading.Thread(target=lambda: listed.extend(checkpointer.list("t")), daemon=True)
        listing.start()
        listing.join(20)
        if listing.is_alive():
            os.close(os.open(pipe, os.O_WRONLY))  # unblocks it
        assert len(listed) == 1
        with pytest.raises(IntegrityError):
            checkpointer.load("t", "pipe")

    def test_second_listing_reads_only_new_headers(self, store, checkpointer, monkeypatch):
        """Headers are cached, and changed files are read again."""
        names = []
        original = header_cache.read_file_header
        monkeypatch.setattr(file, "read_file_header", lambda directory, name: names.append(name) or original(directory, name))
        for n in range(5):
            checkpointer.save("t", {"n": n}, id=f"c{n}")
            store.list("t")
        assert names == [f"c{n}.ckpt" for n in range(5)]
        self.raw_write(store, "t", "c2", b"damaged")
        assert len(store.list("t")) == 4

    def test_full_header_cache_keeps_its_entries(self, store, checkpointer, monkeypatch):
        """If a task has more checkpoints than the cache holds, only the rest is read again; the oldest task makes room for a new one."""
        monkeypatch.setattr(header_cache, "_MAX_HEADERS", 5)
        names = []
        original = header_cache.read_file_header
        monkeypatch.setattr(file, "read_file_header", lambda directory, name: names.append(name) or original(directory, name))
        for task, count in {"t": 8, "u": 2}.items():
            for n in range(count):
                checkpointer.save(task, {"n": n})
        for task, expected in (("t", 8), ("t", 3), ("u", 2), ("u", 0), ("t", 8), ("u", 2)):
            names.clear()
            store.list(task)
            assert len(names) == expected
            assert store._headers._count == sum(map(len, store._headers._folders.values())) <= 5

    def test_header_cache_drops_empty_tasks(self, store, checkpointer):
        """A program may see any number of tasks come and go."""
        info = checkpointer.save("t", {"n": 1})
        store.list("t")
        store.delete("t", info.id)
        store.list("t")
        assert (store._headers._folders, store._headers._count) == ({}, 0)

    def test_header_cache_works_in_a_forked_child(self, store, checkpointer):
        """A child forked while a thread of the parent holds the cache's lock does not deadlock."""
        checkpointer.save("t", {"n": 1})
        with store._headers._lock:
            child = os.fork()
            if child == 0:
                signal.alarm(20)  # kills a child that hangs
                os._exit(0 if len(store.list("t")) == 1 else 1)
            assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("url", ["file://host/path", "file://", "file:///run#1", "file:///run?x=2", "file:///run?"])
def test_invalid_urls(url):
    """A file URL with a host, without a path, or with a query or fragment is refused: two runs must not share a store by accident."""
    with pytest.raises(ConfigError, match="plain path"):
        FileStore(url)


WITH_GIT = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.mark.parametrize(
    ("scheme", "encoded"), [("file", True), ("file", False), ("jsonl", True), ("sqlite", True), pytest.param("git", True, marks=WITH_GIT)]
)
def test_location_opens_the_same_store(tmp_path, scheme, encoded):
    """Whatever characters the path contains, `location` is a URL that opens the store again."""
    path = tmp_path / "run #1? 100%25 naïve"
    checkpointer = Checkpointer(f"{scheme}://{quote(str(path))}" if encoded else path)
    checkpointer.save("t", {"n": 1})
    checkpointer.close()
    assert path.exists()
    with Checkpointer(checkpointer.store.location) as another:
        assert another.load("t") == {"n": 1}


def test_empty_address():
    """An empty string, such as an unset variable, does not mean the working directory."""
    with pytest.raises(ConfigError, match="empty"):
        Checkpointer("")


def test_header_cache_drops_removed_checkpoints(tmp_path):
    """Headers that retention removed take no memory, and the remaining ones are not read again."""
    checkpointer = Checkpointer(tmp_path, keep_last=3)
    folders = checkpointer.store._headers._folders
    for n in range(20):
        checkpointer.save("t", {"n": n})
        checkpointer.load("t")
        assert len(folders[str(tmp_path / "t")]) <= 4
    assert {info.id + ".ckpt" for info in checkpointer.list("t")} <= folders[str(tmp_path / "t")].keys()
