"""The object store under the contract, on a directory; and on Google Cloud Storage and Azure, as far as a server on loopback speaks for them.

S3 has a real server in `tests/services`.
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
    """obstore takes a directory for a bucket."""

    test_processes_write_at_once = None  # the URL of a directory opens a file store there

    @pytest.fixture
    def store(self, tmp_path):
        return ObjectStore(f"file://{tmp_path}")

    def raw_read(self, store, task, id):
        return bytes(obstore.get(store._bucket, _path(task, id)).bytes())

    def raw_write(self, store, task, id, data):
        obstore.put(store._bucket, _path(task, id), data)

    def another(self, store):
        return ObjectStore(store.location)

    def test_newer_format_is_told_where_it_is_the_newest(self, store, checkpointer, tmp_path):
        """D7: a checkpoint of a version to come says upgrade where it is the newest; an older one keeps nobody from the newest."""
        for id in ("older", "newest"):
            checkpointer.save("t", {"x": id}, id=id)
        for id, age in (("older", 3600), ("newest", 0)):
            if id == "newest":
                assert checkpointer.load("t") == {"x": "newest"}
            self.raw_write(store, "t", id, self.raw_read(store, "t", id).replace(b'{"checkpoint":1', b'{"checkpoint":9', 1))
            os.utime(tmp_path / "t" / f"{id}.ckpt", (time.time() - age,) * 2)
            assert id not in [info.id for info in store.list("t")]
        with pytest.raises(CompatibilityError, match="upgrade"):
            checkpointer.load("t")

    def test_what_lies_elsewhere_is_no_checkpoint(self, store, checkpointer, tmp_path):
        """Objects beside the folders of the tasks, or deeper in them, are somebody else's."""
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
    with cloud.serving(request.param, "bucket") as server:
        for name, value in cloud.environment(request.param, server.url).items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def checkpointer(server):
    return Checkpointer(f"{server.scheme}://bucket/prefix")


def test_checkpoints_come_and_go(server, checkpointer):
    """L13, K10: a URL of each service opens a store that saves, loads, lists, finds, reads ranges, deletes and quarantines."""
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


def test_taken_and_missing(server, checkpointer):
    """L9: an id that is taken is a conflict and stays as it is; one that is not there is not found."""
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
def test_refusals_are_typed(server, checkpointer, status, kind, retryable):
    """L9: what the service answers becomes one of our errors, without what was sent or the key."""
    server.refusing = status
    for call in (lambda: checkpointer.save("t", {"secret": "s3cr3t"}), lambda: checkpointer.load("t", "x"), lambda: checkpointer.list("t")):
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.retryable is retryable
        assert "s3cr3t" not in str(caught.value)


def test_damage_is_noticed(server, checkpointer):
    """L8: a newest object whose bytes or header were altered is an integrity error."""
    checkpointer.save("t", {"n": 1}, id="x")
    whole = server.objects["prefix/t/x.ckpt"]
    for damaged in (whole[:-2] + b"2}", b"!" + whole[1:], whole[:-1]):
        server.objects["prefix/t/x.ckpt"] = damaged
        with pytest.raises(IntegrityError):
            checkpointer.load("t")


def test_object_removed_while_listed_is_passed_over(server, checkpointer, monkeypatch):
    """K8: another writer's retention may remove an object between our listing and our reading of its head: that is no error."""
    checkpointer.save("t", {"n": 1}, id="gone")
    checkpointer.save("t", {"n": 2}, id="stays")
    stale = checkpointer.store._entries("t")
    del server.objects["prefix/t/gone.ckpt"]
    monkeypatch.setattr(checkpointer.store, "_entries", lambda folder: stale)
    assert [info.id for info in checkpointer.list("t")] == ["stays"]
    assert checkpointer.load("t") == {"n": 2}


def test_headers_of_removed_checkpoints_are_forgotten(server, checkpointer):
    """K5: what retention removed takes no memory, however long a program runs."""
    tidy = Checkpointer(checkpointer.store, keep_last=2)
    for n in range(12):
        tidy.save("t", {"n": n})
        tidy.load("t")
    assert len(tidy.store._headers._folders["t"]) <= 4


def test_listing_is_whole_or_an_error(server, checkpointer, monkeypatch):
    """L9: a head that the service refuses to give is not a damaged checkpoint: a listing without it would be a lie."""
    checkpointer.save("t", {"n": 1})
    fresh = Checkpointer(checkpointer.store.location)
    monkeypatch.setattr(fresh.store, "_read_header", lambda path: (_ for _ in ()).throw(UnavailableError("busy")))
    with pytest.raises(UnavailableError):
        fresh.list("t")


def test_slow_uploads_have_the_time_they_need(server, monkeypatch):
    """L13: a request may take longer the larger it is, and what is large is read in parts; a service that takes longer still is a deadline."""
    monkeypatch.setattr(objects, "_REQUEST_SECONDS", 0.5)
    monkeypatch.setattr(objects, "_PART", 1000)
    monkeypatch.setattr(objects, "_MIN_BYTES_PER_SECOND", 1000)
    checkpointer = Checkpointer(f"{server.scheme}://bucket/prefix")
    server.slowness = 1.5
    state = {"text": "x" * 20_000}
    checkpointer.save("t", state, id="large")
    assert checkpointer.load("t", "large") == state
    assert checkpointer.open("t", "large")["text"] == state["text"]
    monkeypatch.setattr(objects, "_MIN_BYTES_PER_SECOND", 10**9)
    with pytest.raises((DeadlineError, UnavailableError)) as caught:
        checkpointer.save("t", state, id="late")
    assert caught.value.retryable


def test_more_than_a_service_takes_is_refused(checkpointer, monkeypatch):
    """L9: a checkpoint beyond what the service takes in one request is a capacity error before anything is sent."""
    assert checkpointer.store.capabilities.max_size > 2**32
    checkpointer.store.capabilities = checkpointer.store.capabilities._replace(max_size=100)
    with pytest.raises(CapacityError) as caught:
        checkpointer.save("t", {"text": "x" * 1000})
    assert caught.value.code == "storage.too_large"
