"""The Redis store: the contract, on a real server."""

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

    def test_durability_is_that_of_the_server(self, store):
        """This server syncs every write, so a checkpoint survives a power failure, and the store reports it."""
        assert store.capabilities.durability == "machine"

    def test_quarantine_loses_no_bytes(self, store, checkpointer):
        """The bytes of a quarantined checkpoint are still on the server."""
        info = checkpointer.save("t", {"n": 1})
        raw = self.raw_read(store, "t", info.id)
        store.quarantine("t", info.id)
        (key,) = store._client.keys("ckpt:quarantine:*")
        assert b"".join(store._client.hmget(key, "header", "payload")) == raw


def test_warning_about_a_server_that_may_evict(tmp_path, caplog):
    """A server that may evict keys, or does not sync, has a lower durability, and a warning is logged."""
    with stores.redis(tmp_path, "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru") as (url, _):
        assert RedisStore(url).capabilities.durability == "server"
    assert "may evict" in caplog.text


def test_full_memory_is_a_capacity_error(tmp_path):
    """A server without memory raises CapacityError, and existing checkpoints remain."""
    with stores.redis(tmp_path, "--maxmemory", "6mb", "--maxmemory-policy", "noeviction") as (url, _), Checkpointer(url) as checkpointer:
        checkpointer.save("t", {"n": 1})
        with pytest.raises(CapacityError) as caught:
            for _ in range(10):
                checkpointer.save("t", {"text": "x" * 2_000_000})
        assert caught.value.code == "memory.exhausted"
        assert checkpointer.load("t", checkpointer.list("t")[-1].id) == {"n": 1}


def test_password_and_dead_server(tmp_path):
    """A missing password raises AccessError; a server that is down raises a retryable UnavailableError."""
    with stores.redis(tmp_path, "--requirepass", "sesame") as (url, _):
        with pytest.raises(AccessError):
            Checkpointer(url).save("t", {})
        with Checkpointer(url.replace("redis://", "redis://:sesame@")) as checkpointer:
            checkpointer.save("t", {"n": 1})
            assert "sesame" not in checkpointer.store.location
    with pytest.raises(UnavailableError) as caught:
        checkpointer.load("t")
    assert caught.value.retryable
