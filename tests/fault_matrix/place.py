"""Where a fault is injected: a store of one kind, empty or with a checkpoint, and access to its medium."""

from __future__ import annotations

import importlib
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores.memory import MemoryStore
from tests.fault_matrix.rig import ID, STATE

_URLS = {"file": "file://{}/store", "jsonl": "jsonl://{}/store", "sqlite": "sqlite://{}/store.db", "git": "git://{}/store"}
_HARNESSES = {
    "file": "tests.core.stores.test_store_file:TestFileStore",
    "jsonl": "tests.core.stores.test_store_jsonl:TestJsonlStore",
    "sqlite": "tests.core.stores.test_store_sqlite:TestSqliteStore",
    "git": "tests.core.stores.test_store_git:TestGitStore",
    "memory": "tests.core.stores.test_store_memory:TestMemoryStore",
    "postgresql": "test_service_postgres:TestPostgresStore",
    "redis": "test_service_redis:TestRedisStore",
    "s3": "test_service_objects:TestObjectStore",
}
"""The tests of each store's contract, which know how to change its bytes."""


class Place:
    """A store of one kind. Checkpoints of other tests on the same server belong to other tasks."""

    def __init__(self, store: str, action: str, directory: Path, servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.action = action
        self.directory = directory
        self.servers = servers
        self.monkeypatch = monkeypatch
        self.task = f"task-{uuid.uuid4().hex}"
        self._open = ExitStack()

    @property
    def url(self) -> str:
        """The URL of the store. A server is started if necessary."""
        return _URLS[self.store].format(self.directory) if self.store in _URLS else self.servers.url(self.store, self.monkeypatch)

    def checkpointer(self, url: str | None = None, **options: Any) -> Checkpointer:
        """Return a Checkpointer on the store, or on this URL. It is closed with the place."""
        store: Any = MemoryStore() if self.store == "memory" else url or self.url
        return self._open.enter_context(Checkpointer(store, **options))

    def with_checkpoint(self, state: Any = STATE, url: str | None = None, **options: Any) -> Checkpointer:
        """Return a Checkpointer on a store that has the checkpoint ID."""
        checkpointer = self.checkpointer(url, **options)
        checkpointer.save(self.task, state, id=ID)
        return checkpointer

    def ready(self, checkpointer: Checkpointer) -> Checkpointer:
        """Make the action possible: a load needs a checkpoint. A save needs a store that is set up, because the fault is not in that."""
        checkpointer.save(self.task, STATE, id=ID if self.action == "load" else "earlier")
        return checkpointer

    def change_bytes(self, checkpointer: Checkpointer, old: bytes, new: bytes) -> None:
        """Change the stored bytes of the checkpoint ID, past the store. An empty `old` is the end."""
        module, _, name = _HARNESSES[self.store].partition(":")
        harness = getattr(importlib.import_module(module), name)()
        data = harness.raw_read(checkpointer.store, self.task, ID)
        head, match, tail = data.rpartition(old) if old else (data[:-2], True, b"")
        assert match
        harness.raw_write(checkpointer.store, self.task, ID, head + new + tail)

    def close(self) -> None:
        self._open.close()
