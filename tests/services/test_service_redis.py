"""The Redis store under the contract, on a real server."""

from __future__ import annotations

import pytest

pytest.importorskip("redis")

import redis
import stores

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores.redis import RedisStore, _key
from ckpt_observe.errors import AccessError, CapacityError, UnavailableError
from ckpt_observe.testing.stores import StoreContract

pytestmark = pytest.mark.services


class TestRedisStore(StoreContract):
    @pytest.fixture
    def store(self, redis_url):
        redis.Redis.from_url(redis_url).flushall()
        with RedisStore(redis_url) as store:
            yield store

    def raw_read(self, store, task, id):
        return b"".join(store._client.hmget(_key(task, id), "header", "payload"))

    def raw_write(self, store, task, id, data):
        length = data.find(b"\n") + 1 or len(data)
        store._client.hset(_key(task, id), mapping={"header": data[:length], "payload": data[length:]})

    def another(self, store):
        return RedisStore(store.location)

    def test_promise_is_the_servers(self, store):
        """This server syncs every write, so a checkpoint survives a power cut, and the store says so."""
        assert store.capabilities.durability == "machine"

    def test_quarantined_bytes_are_kept(self, store, checkpointer):
        """Quarantine loses nothing."""
        info = checkpointer.save("t", {"n": 1})
        raw = self.raw_read(store, "t", info.id)
        store.quarantine("t", info.id)
        (kept,) = store._client.keys("ckpt:quarantine:*")
        assert b"".join(store._client.hmget(kept, "header", "payload")) == raw


def test_evicting_server_is_warned_about(tmp_path, caplog):
    """A server that may evict keys, or that does not sync, promises less, and the log says so."""
    with stores.redis(tmp_path, "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru") as (url, _):
        assert RedisStore(url).capabilities.durability == "server"
    assert "may evict" in caplog.text


def test_full_memory_is_capacity(tmp_path):
    """L9: a server without memory left is a capacity error, and what was saved stays."""
    with stores.redis(tmp_path, "--maxmemory", "6mb", "--maxmemory-policy", "noeviction") as (url, _), Checkpointer(url) as checkpointer:
        checkpointer.save("t", {"n": 1})
        with pytest.raises(CapacityError) as caught:
            for _ in range(10):
                checkpointer.save("t", {"text": "x" * 2_000_000})
        assert caught.value.code == "memory.exhausted"
        assert checkpointer.load("t", checkpointer.list("t")[-1].id) == {"n": 1}


def test_password_and_dead_server(tmp_path):
    """L9: a missing password is a permission error; a server that is gone is unavailable and worth another try."""
    with stores.redis(tmp_path, "--requirepass", "sesame") as (url, _):
        with pytest.raises(AccessError):
            Checkpointer(url).save("t", {})
        with Checkpointer(url.replace("redis://", "redis://:sesame@")) as checkpointer:
            checkpointer.save("t", {"n": 1})
            assert "sesame" not in checkpointer.store.location
    with pytest.raises(UnavailableError) as caught:
        checkpointer.load("t")
    assert caught.value.retryable
