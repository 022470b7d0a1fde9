"""Checkpoints in Redis: `redis://host:6379/0`. Extra `redis`.

Each put is one script, so a reader sees all of a checkpoint or nothing. Safe between threads, processes and hosts. How
durable it is, is the server's decision: `promise` says `machine` only if the server syncs every write to its append-only file,
and `server` otherwise; a server that may evict keys is warned about, as eviction is silent loss. A checkpoint may have up to
512 MB, Redis's limit for a value.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from ckpt_observe.core import container
from ckpt_observe.core.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.stores import sql
from ckpt_observe.core.stores.base import Promise, Store
from ckpt_observe.core.stores.locate import place
from ckpt_observe.errors import (
    AccessError,
    CapacityError,
    CheckpointError,
    CheckpointNotFoundError,
    ConflictError,
    DeadlineError,
    MissingExtraError,
    StorageError,
    UnavailableError,
)

try:
    import redis
    from redis import exceptions
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise MissingExtraError("the Redis store", "redis") from error

_PUT = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'header', ARGV[1], 'payload', ARGV[2])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[4])
redis.call('SADD', KEYS[3], ARGV[5])
return 1
"""
_REMOVE = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if ARGV[3] == '' then redis.call('DEL', KEYS[1]) else redis.call('RENAME', KEYS[1], ARGV[3]) end
redis.call('ZREM', KEYS[2], ARGV[1])
if redis.call('ZCARD', KEYS[2]) == 0 then redis.call('SREM', KEYS[3], ARGV[2]) end
return 1
"""
_TASKS = "ckpt:tasks"
_SECONDS = 30.0
"""For a command and its answer."""

_TABLE: tuple[tuple[type[Exception], type[CheckpointError], str, bool], ...] = (
    (exceptions.AuthenticationError, AccessError, "storage.permission", False),
    (exceptions.NoPermissionError, AccessError, "storage.permission", False),
    (exceptions.TimeoutError, DeadlineError, "timeout.deadline", True),
    (exceptions.ConnectionError, UnavailableError, "unavailable.connection", True),
    (exceptions.ReadOnlyError, StorageError, "storage.read_only", False),
    (exceptions.OutOfMemoryError, CapacityError, "memory.exhausted", False),
    (exceptions.RedisError, StorageError, "storage.io", True),
)
"""The first that fits: subclasses stand before their bases."""


class RedisStore(Store):
    """Hashes on a server, and a sorted set of them for each task."""

    kind = "redis"

    def __init__(self, url: str) -> None:
        host, port, path = place(url)
        super().__init__(f"redis://{host or 'localhost'}:{port or 6379}{path}")
        # no retries inside: who wants them wraps the store
        self._client = redis.Redis.from_url(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS, retry=Retry(NoBackoff(), 0))
        self._put = self._client.register_script(_PUT)
        self._remove = self._client.register_script(_REMOVE)
        self._promise: Promise | None = None

    @property
    def promise(self) -> Promise:  # type: ignore[override]  # asked of the server
        if self._promise is None:
            self._promise = self._asked_promise()
        return self._promise

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        header, *payload = blob.pieces
        keys = [_key(info.task, info.id), _index(info.task), _TASKS]
        values = [bytes(header), b"".join(payload), sql.microseconds(info.created), info.id, info.task]
        with _translated("saving a checkpoint", self.location):
            if not self._put(keys, values):
                raise ConflictError(f"{info.task!r} has a checkpoint {info.id!r} already")

    def get(self, task: str, id: str) -> Buffer:
        header, payload = self._fields(task, id, "header", "payload")
        return header + payload

    def info(self, task: str, id: str) -> CheckpointInfo:
        return container.read_header(self._fields(task, id, "header")[0])

    def size(self, task: str, id: str) -> int:
        with _translated("reading a checkpoint", self.location):
            lengths = [self._client.hstrlen(_key(task, id), field) for field in ("header", "payload")]
        if not any(lengths):
            raise self._missing(task, id)
        return sum(lengths)

    def delete(self, task: str, id: str) -> None:
        self._take_away(task, id, "")

    def quarantine(self, task: str, id: str) -> None:
        self._take_away(task, id, f"ckpt:quarantine:{secrets.token_hex(4)}{_key(task, id).removeprefix('ckpt:c')}")

    def list(self, task: str) -> CheckpointInfos:
        with _translated("listing checkpoints", self.location):
            pipeline = self._client.pipeline(transaction=False)
            ids = self.ids(task)
            for id in ids:
                pipeline.hget(_key(task, id), "header")
            return sql.infos((task, id, header) for id, header in zip(ids, pipeline.execute(), strict=True) if header is not None)

    def ids(self, task: str) -> tuple[str, ...]:
        return self._newest(task, -1)

    def newest(self, task: str) -> str | None:
        return next(iter(self._newest(task, 0)), None)

    def tasks(self) -> tuple[str, ...]:
        with _translated("listing tasks", self.location):
            return tuple(sorted(task.decode() for task in self._client.smembers(_TASKS)))

    def close(self) -> None:
        self._client.close()

    def _newest(self, task: str, last: int) -> tuple[str, ...]:
        """Ids up to that place, newest first."""
        with _translated("listing checkpoints", self.location):
            return tuple(id.decode() for id in self._client.zrevrange(_index(task), 0, last))

    def _fields(self, task: str, id: str, *names: str) -> Sequence[bytes]:
        with _translated("reading a checkpoint", self.location):
            values: list[bytes] = self._client.hmget(_key(task, id), names)
        if None in values:
            raise self._missing(task, id)
        return values

    def _take_away(self, task: str, id: str, to: str) -> None:
        with _translated("removing a checkpoint", self.location):
            if not self._remove([_key(task, id), _index(task), _TASKS], [id, task, to]):
                raise self._missing(task, id)

    def _missing(self, task: str, id: str) -> CheckpointNotFoundError:
        return CheckpointNotFoundError(f"{task!r} has no checkpoint {id!r} in {self.location}")

    def _asked_promise(self) -> Promise:
        settings: dict[str, Any] = {}
        try:
            for name in ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy"):
                settings.update(self._client.config_get(name))
        except exceptions.RedisError:
            pass  # not allowed to ask, or not there: promise the least
        if settings.get("maxmemory", "0") != "0" and settings.get("maxmemory-policy") != "noeviction":
            logging.getLogger(__name__).warning("%s may evict checkpoints when its memory is full: set noeviction", self.location)
        synced = settings.get("appendonly") == "yes" and settings.get("appendfsync") == "always"
        return Promise(durable="machine" if synced else "server", shared="hosts", largest=512 << 20)


def _key(task: str, id: str) -> str:
    return f"ckpt:c:{quote(task, safe='')}:{quote(id, safe='')}"


def _index(task: str) -> str:
    return f"ckpt:i:{quote(task, safe='')}"


@contextmanager
def _translated(doing: str, location: str) -> Iterator[None]:
    try:
        yield
    except exceptions.RedisError as error:
        kind, code, retryable = next(entry[1:] for entry in _TABLE if isinstance(error, entry[0]))
        raise kind(f"{doing} in {location}: {type(error).__name__}", code=code, retryable=retryable) from error
