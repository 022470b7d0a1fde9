"""The object store: the contract on a directory, and tests on local servers that imitate Google Cloud Storage and Azure.

tests/services tests S3 with a real server.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("obstore")
sys.path.insert(0, str(Path(__file__).parent))

import cloud
import obstore

from ckpt_observe.core import Checkpointer, Query
from ckpt_observe.core.stores import objects
from ckpt_observe.core.stores.objects import ObjectStore, _path
from ckpt_observe.errors import (
    AccessError,
    CapacityError,
    CheckpointNotFoundError,
    CompatibilityError,
    ConflictError,
    DeadlineError,
    IntegrityError,
    UnavailableError,
)
from ckpt_observe.testing.stores import StoreContract


class TestObjectStore(StoreContract):
    """On a directory, which obstore accepts as a bucket."""

    test_processes_write_at_once = None  # the URL of a directory would open a file store

    @pytest.fixture
    def store(self, tmp_path):
        return ObjectStore(f"file://{tmp_path}")

    def raw_read(self, store, task, id):
        return bytes(obstore.get(store._bucket, _path(task, id)).bytes())

    def raw_write(self, store, task, id, data):
        obstore.put(store._bucket, _path(task, id), data)

    def another(self, store):
        return ObjectStore(store.location)

    def test_newest_checkpoint_of_a_newer_format_raises(self, store, checkpointer, tmp_path):
        """If the newest checkpoint has a newer format, a load says to upgrade; an older one does not prevent loading the newest."""
        for id in ("older", "newest"):
            checkpointer.save("t", {"x": id}, id=id)
        for id, age in (("older", 3600), ("newest", 0)):
            if id == "newest":
                assert checkpointer.load("t") == {"x": "newest"}
            self.raw_write(store, "t", id, self.raw_read(store, "t", id).replace(b'{"checkpoint":2', b'{"checkpoint":9', 1))
            os.utime(tmp_path / "t" / f"{id}.ckpt", (time.time() - age,) * 2)
            assert id not in [info.id for info in store.list("t")]
        with pytest.raises(CompatibilityError, match="upgrade"):
            checkpointer.load("t")

    def test_objects_elsewhere_are_ignored(self, store, checkpointer, tmp_path):
        """Objects next to the folders of the tasks, or in nested folders, belong to others."""
        info = checkpointer.save("t", {"n": 1}, id="a")
        copy = (tmp_path / "t" / "a.ckpt").read_bytes()
        (tmp_path / "t" / "backup").mkdir()
        for path in (tmp_path / "z.ckpt", tmp_path / "t" / "backup" / "z.ckpt"):
            path.write_bytes(copy)
        assert store.tasks() == ("t",)
        assert store.ids("t") == ("a",)
        assert store.list("t") == [info]


@pytest.fixture(params=["gs", "az"])
def server(request, monkeypatch):
    with cloud.serve(request.param, "bucket") as server:
        for name, value in cloud.environment(request.param, server.url).items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def checkpointer(server):
    return Checkpointer(f"{server.scheme}://bucket/prefix")


def test_all_operations(server, checkpointer):
    """A URL of each service opens a store that saves, loads, lists, finds, reads ranges, deletes and quarantines."""
    store = checkpointer.store
    infos = [checkpointer.save("t", {"n": n}, id=f"c{n}", step=n) for n in range(3)]
    assert sorted(server.objects) == [f"prefix/t/c{n}.ckpt" for n in range(3)]
    assert (store.kind, store.location) == (server.scheme, f"{server.scheme}://bucket/prefix")
    assert checkpointer.load("t") == {"n": 2}
    assert checkpointer.list("t") == infos[::-1]
    assert checkpointer.find(Query(min_step=1, limit=1)) == [infos[2]]
    assert store.tasks() == ("t",)
    assert checkpointer.open("t", "c1")["n"] == 1
    checkpointer.delete("t", "c0")
    store.quarantine("t", "c1")
    assert [name for name in server.objects if name.endswith(".bad")]
    assert store.ids("t") == ("c2",)


def test_existing_and_missing_ids(server, checkpointer):
    """An existing id is a conflict and is not changed; a missing one is not found."""
    checkpointer.save("t", {"n": 1}, id="x")
    with pytest.raises(ConflictError):
        checkpointer.save("t", {"n": 2}, id="x")
    assert checkpointer.load("t", "x") == {"n": 1}
    for call in (
        checkpointer.store.get,
        checkpointer.store.info,
        checkpointer.store.size,
        checkpointer.store.delete,
        checkpointer.store.quarantine,
    ):
        with pytest.raises(CheckpointNotFoundError):
            call("t", "y")


@pytest.mark.parametrize(
    ("status", "kind", "retryable"), [(503, UnavailableError, True), (403, AccessError, False), (401, AccessError, False)]
)
def test_refusals_are_translated(server, checkpointer, status, kind, retryable):
    """Answers of the service become CheckpointErrors, without the data that was sent or the key."""
    server.refusal = status
    for call in (lambda: checkpointer.save("t", {"secret": "s3cr3t"}), lambda: checkpointer.load("t", "x"), lambda: checkpointer.list("t")):
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.retryable is retryable
        assert "s3cr3t" not in str(caught.value)


def test_damage_is_detected(server, checkpointer):
    """If the payload or the header of the newest object was altered, a load raises IntegrityError."""
    checkpointer.save("t", {"n": 1}, id="x")
    whole = server.objects["prefix/t/x.ckpt"]
    for damaged in (whole[:-2] + b"2}", b"!" + whole[1:], whole[:-1]):
        server.objects["prefix/t/x.ckpt"] = damaged
        with pytest.raises(IntegrityError):
            checkpointer.load("t")


def test_object_deleted_during_a_listing_is_skipped(server, checkpointer, monkeypatch):
    """Another writer may delete an object between our listing and the reading of its header: this is not an error."""
    checkpointer.save("t", {"n": 1}, id="gone")
    checkpointer.save("t", {"n": 2}, id="stays")
    stale = checkpointer.store._entries("t")
    del server.objects["prefix/t/gone.ckpt"]
    monkeypatch.setattr(checkpointer.store, "_entries", lambda folder: stale)
    assert [info.id for info in checkpointer.list("t")] == ["stays"]
    assert checkpointer.load("t") == {"n": 2}


def test_header_cache_drops_removed_checkpoints(server, checkpointer):
    """Headers that retention removed take no memory."""
    tidy = Checkpointer(checkpointer.store, keep_last=2)
    for n in range(12):
        tidy.save("t", {"n": n})
        tidy.load("t")
    assert len(tidy.store._headers._folders["t"]) <= 4


def test_listing_is_complete_or_raises(server, checkpointer, monkeypatch):
    """A header that the service refuses to return is not damaged: a listing must not omit it."""
    checkpointer.save("t", {"n": 1})
    fresh = Checkpointer(checkpointer.store.location)
    monkeypatch.setattr(fresh.store, "_read_header", lambda path: (_ for _ in ()).throw(UnavailableError("busy")))
    with pytest.raises(UnavailableError):
        fresh.list("t")


def test_timeout_grows_with_the_upload(server, monkeypatch):
    """A large request may take longer, and a large object is read in parts; a service that is even slower raises a timeout."""
    monkeypatch.setattr(objects, "_PART", 1000)
    reader = Checkpointer(f"{server.scheme}://bucket/prefix")
    monkeypatch.setattr(objects, "_REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(objects, "_MIN_BYTES_PER_SECOND", 400)
    checkpointer = Checkpointer(f"{server.scheme}://bucket/prefix")
    server.upload_seconds = 1.5
    state = {"text": "x" * 20_000}
    checkpointer.save("t", state, id="large")
    assert reader.load("t", "large") == state
    assert reader.open("t", "large")["text"] == state["text"]
    monkeypatch.setattr(objects, "_MIN_BYTES_PER_SECOND", 10**9)
    with pytest.raises((DeadlineError, UnavailableError)) as caught:
        checkpointer.save("t", state, id="late")
    assert caught.value.retryable


def test_too_large_checkpoint_is_refused(checkpointer, monkeypatch):
    """A checkpoint that exceeds the service's limit for a request raises CapacityError before anything is sent."""
    assert checkpointer.store.capabilities.max_size > 2**32
    checkpointer.store.capabilities = checkpointer.store.capabilities._replace(max_size=100)
    with pytest.raises(CapacityError) as caught:
        checkpointer.save("t", {"text": "x" * 1000})
    assert caught.value.code == "storage.too_large"
