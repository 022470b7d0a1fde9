"""Checkpoints in Redis: `redis://host:6379/0`. Extra `redis`.

Each put is one script, so a reader sees all of a checkpoint or nothing. Safe between threads, processes and hosts. Durability depends on
the server: `capabilities.durability` is `machine` only if the server syncs every write to its append-only file, else `server`. Reading
`capabilities` logs a warning if the server may evict keys, because evicted checkpoints are lost silently. A checkpoint can have up to
512 MB, Redis's limit for a value.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from ckpt_observe.core.format import container
from ckpt_observe.core.format.blob import Blob, Buffer
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos
from ckpt_observe.core.stores.store import Capabilities, Store, already_exists, decode_headers, not_found, to_microseconds
from ckpt_observe.core.stores.urls import server_address
from ckpt_observe.errors import (
    AccessError,
    CapacityError,
    CheckpointError,
    CheckpointNotFoundError,
    DeadlineError,
    MissingExtraError,
    StorageError,
    UnavailableError,
)
from ckpt_observe.support import logs
from ckpt_observe.support.advice import add_advice

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
_NO_SPACE = "No space left on device"
"""Part of the answer (MISCONF) of a server that refuses writes because its append-only file cannot grow."""
_TIMEOUT_SECONDS = 30.0
"""Timeout for connecting, and for each command."""

_ERRORS: tuple[tuple[type[Exception], type[CheckpointError], str, bool], ...] = (
    (exceptions.AuthenticationError, AccessError, "permission.authentication", False),
    (exceptions.NoPermissionError, AccessError, "storage.permission", False),
    (exceptions.TimeoutError, DeadlineError, "timeout.deadline", True),
    (exceptions.ConnectionError, UnavailableError, "unavailable.connection", True),
    (exceptions.ReadOnlyError, StorageError, "storage.read_only", False),
    (exceptions.OutOfMemoryError, CapacityError, "memory.exhausted", False),
    (exceptions.RedisError, StorageError, "storage.io", True),
)
"""By exception of redis-py: ours, its code, and whether a retry can help. The first match counts, so subclasses come first."""


class RedisStore(Store):
    """One hash per checkpoint, and one sorted set of ids per task."""

    kind = "redis"

    def __init__(self, url: str) -> None:
        host, port, path = server_address(url)
        super().__init__(f"redis://{host or 'localhost'}:{port or 6379}{path}")
        no_retries = Retry(NoBackoff(), 0)  # for retries use RetryingStore
        timeouts = {"socket_timeout": _TIMEOUT_SECONDS, "socket_connect_timeout": _TIMEOUT_SECONDS}
        self._client = redis.Redis.from_url(url, **timeouts, retry=no_retries)
        self._put_script = self._client.register_script(_PUT)
        self._remove_script = self._client.register_script(_REMOVE)
        self._capabilities: Capabilities | None = None

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]  # depends on the server
        if self._capabilities is None:
            self._capabilities = self._query_capabilities()
        return self._capabilities

    def put(self, info: CheckpointInfo, blob: Blob) -> None:
        header, *payload = blob.pieces
        keys = [_key(info.task, info.id), _index(info.task), _TASKS]
        values = [bytes(header), b"".join(payload), to_microseconds(info.created), info.id, info.task]
        with _translate_errors("saving a checkpoint", self.location):
            if not self._put_script(keys, values):
                raise already_exists(info.task, info.id)

    def get(self, task: str, id: str) -> Buffer:
        header, payload = self._fields(task, id, "header", "payload")
        return header + payload

    def info(self, task: str, id: str) -> CheckpointInfo:
        return container.read_header(self._fields(task, id, "header")[0])

    def size(self, task: str, id: str) -> int:
        with _translate_errors("reading a checkpoint", self.location):
            lengths = [self._client.hstrlen(_key(task, id), field) for field in ("header", "payload")]
        if not any(lengths):
            raise self._not_found(task, id)
        return sum(lengths)

    def delete(self, task: str, id: str) -> None:
        self._remove(task, id, target="")

    def quarantine(self, task: str, id: str) -> None:
        self._remove(task, id, target=f"ckpt:quarantine:{secrets.token_hex(4)}{_key(task, id).removeprefix('ckpt:c')}")

    def list(self, task: str) -> CheckpointInfos:
        with _translate_errors("listing checkpoints", self.location):
            pipeline = self._client.pipeline(transaction=False)
            ids = self.ids(task)
            for id in ids:
                pipeline.hget(_key(task, id), "header")
            return decode_headers((task, id, header) for id, header in zip(ids, pipeline.execute(), strict=True) if header is not None)

    def ids(self, task: str) -> tuple[str, ...]:
        return self._newest_ids(task, -1)

    def newest(self, task: str) -> str | None:
        return next(iter(self._newest_ids(task, 0)), None)

    def tasks(self) -> tuple[str, ...]:
        with _translate_errors("listing tasks", self.location):
            return tuple(sorted(task.decode() for task in self._client.smembers(_TASKS)))

    def close(self) -> None:
        self._client.close()

    def _newest_ids(self, task: str, last: int) -> tuple[str, ...]:
        """Return ids, newest first, up to and including index `last`; -1 for all."""
        with _translate_errors("listing checkpoints", self.location):
            return tuple(id.decode() for id in self._client.zrevrange(_index(task), 0, last))

    def _fields(self, task: str, id: str, *names: str) -> Sequence[bytes]:
        with _translate_errors("reading a checkpoint", self.location):
            values: list[bytes] = self._client.hmget(_key(task, id), names)
        if None in values:
            raise self._not_found(task, id)
        return values

    def _remove(self, task: str, id: str, *, target: str) -> None:
        """Delete a checkpoint or, if `target` is not empty, rename its key to that."""
        with _translate_errors("removing a checkpoint", self.location):
            if not self._remove_script([_key(task, id), _index(task), _TASKS], [id, task, target]):
                raise self._not_found(task, id)

    def _not_found(self, task: str, id: str) -> CheckpointNotFoundError:
        return not_found(task, id, self.location)

    def _query_capabilities(self) -> Capabilities:
        settings: dict[str, Any] = {}
        try:
            for name in ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy"):
                settings.update(self._client.config_get(name))
        except exceptions.RedisError:
            pass  # not permitted or not reachable: assume the least
        if settings.get("maxmemory", "0") != "0" and settings.get("maxmemory-policy") != "noeviction":
            logs.warn("%s may evict checkpoints when its memory is full: set maxmemory-policy to noeviction", self.location)
        is_synced = settings.get("appendonly") == "yes" and settings.get("appendfsync") == "always"
        return Capabilities(durability="machine" if is_synced else "server", writers="hosts", max_size=512 << 20)


def _key(task: str, id: str) -> str:
    return f"ckpt:c:{quote(task, safe='')}:{quote(id, safe='')}"


def _index(task: str) -> str:
    return f"ckpt:i:{quote(task, safe='')}"


@contextmanager
def _translate_errors(action: str, location: str) -> Iterator[None]:
    try:
        yield
    except exceptions.RedisError as error:
        if _NO_SPACE in str(error):
            text = f"{action} in {location}: the server cannot write its files, because its disk is full. Free some space there"
            raise CapacityError(text, code="storage.no_space") from error
        kind, code, retryable = next(entry[1:] for entry in _ERRORS if isinstance(error, entry[0]))
        message = add_advice(f"{action} in {location}: {type(error).__name__}", code)
        raise kind(message, code=code, retryable=retryable) from error
