"""The object store under the contract, on a real S3 server."""

from __future__ import annotations

import pytest

pytest.importorskip("obstore")

import obstore
import processes

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores.objects import ObjectStore, _path
from ckpt_observe.errors import UnavailableError
from ckpt_observe.testing.stores import StoreContract

pytestmark = pytest.mark.services


class TestObjectStore(StoreContract):
    @pytest.fixture
    def store(self, s3_url):
        store = ObjectStore(s3_url)
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

    def test_listing_again_reads_only_new_heads(self, store, checkpointer, monkeypatch):
        """Heads that were seen are remembered."""
        read = []
        original = store._header
        monkeypatch.setattr(store, "_header", lambda path: read.append(path) or original(path))
        for n in range(3):
            checkpointer.save("t", {"n": n}, id=f"c{n}")
            store.list("t")
        assert read == ["t/c0.ckpt", "t/c1.ckpt", "t/c2.ckpt"]


def test_dead_server(monkeypatch):
    """L9: a service that cannot be reached is unavailable, and worth another try."""
    for name, value in {"AWS_ENDPOINT": f"http://127.0.0.1:{processes.free_port()}", "AWS_ALLOW_HTTP": "true", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnavailableError) as caught:
        Checkpointer("s3://checkpoints/x").save("t", {})
    assert caught.value.retryable
