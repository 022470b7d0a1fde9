"""The object store: the contract on a real S3 server and on Azurite, Microsoft's emulator of Azure."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("obstore")

import obstore
import processes
import stores

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores.objects import ObjectStore, _path
from ckpt_observe.errors import AccessError, StorageError, UnavailableError
from ckpt_observe.testing.stores import StoreContract

pytestmark = pytest.mark.services

WRONG_KEY = "d3Jvbmc="


class TestObjectStore(StoreContract):
    @pytest.fixture
    def store(self, bucket_url):
        store = ObjectStore(bucket_url)
        for batch in obstore.list(store._bucket):
            for entry in batch:
                obstore.delete(store._bucket, entry["path"])
        return store

    def raw_read(self, store, task, id):
        return bytes(obstore.get(store._bucket, _path(task, id)).bytes())

    def raw_write(self, store, task, id, data):
        obstore.put(store._bucket, _path(task, id), data)

    def another(self, store):
        return ObjectStore(store.location)

    def test_second_listing_reads_only_new_headers(self, store, checkpointer, monkeypatch):
        """Headers are cached."""
        paths = []
        original = store._read_header
        monkeypatch.setattr(store, "_read_header", lambda path: paths.append(path) or original(path))
        for n in range(3):
            checkpointer.save("t", {"n": n}, id=f"c{n}")
            store.list("t")
        assert paths == ["t/c0.ckpt", "t/c1.ckpt", "t/c2.ckpt"]

    @pytest.mark.parametrize("bucket_url", ["s3"], indirect=True)  # a page of Azure has 5,000 names: too many to write in each run
    def test_several_pages_are_listed(self, store):
        """A service answers a listing in pages, S3 with a thousand names each; nothing is missing."""
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: self.raw_write(store, "t", f"c{n}", b""), range(1001)))
        assert sorted(store.ids("t")) == sorted(f"c{n}" for n in range(1001))


@pytest.mark.parametrize(
    ("bucket_url", "variable"),
    [("s3", "AWS_SECRET_ACCESS_KEY"), ("az", "AZURE_STORAGE_ACCOUNT_KEY")],
    indirect=["bucket_url"],
    scope="session",
)
def test_wrong_key(bucket_url, variable, monkeypatch):
    """With a wrong key every call raises an AccessError that is not retryable."""
    monkeypatch.setenv(variable, WRONG_KEY)
    checkpointer = Checkpointer(bucket_url)
    for call in (
        lambda: checkpointer.save("t", {}),
        lambda: checkpointer.load("t", "x"),
        lambda: checkpointer.list("t"),
        checkpointer.store.tasks,
    ):
        with pytest.raises(AccessError) as caught:
            call()
        assert not caught.value.retryable
        assert WRONG_KEY not in str(caught.value)


def test_missing_bucket(bucket_url):
    """A missing bucket is reported as such, not as a missing checkpoint."""
    checkpointer = Checkpointer(bucket_url.replace("checkpoints", "missing"))
    for call in (
        lambda: checkpointer.save("t", {}),
        lambda: checkpointer.load("t", "x"),
        lambda: checkpointer.list("t"),
        checkpointer.store.tasks,
    ):
        with pytest.raises(StorageError, match="bucket does not exist") as caught:
            call()
        assert (caught.value.code, caught.value.retryable) == ("storage.no_bucket", False)


@pytest.mark.parametrize("scheme", ["s3", "az"])
def test_dead_server(scheme, monkeypatch):
    """A service that cannot be reached raises a retryable UnavailableError."""
    for name, value in stores.environment(scheme, processes.free_port()).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnavailableError) as caught:
        Checkpointer(f"{scheme}://checkpoints/x").save("t", {})
    assert caught.value.retryable
