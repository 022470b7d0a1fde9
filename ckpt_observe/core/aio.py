"""The Checkpointer for asyncio: its main operations as coroutines. Threads do the work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from ckpt_observe.core.background import Workers
from ckpt_observe.core.checkpointer import Checkpointer
from ckpt_observe.core.loading.drill import Drill
from ckpt_observe.core.loading.verify import Finding
from ckpt_observe.core.model import CheckpointInfo, CheckpointInfos, Restored
from ckpt_observe.core.query import Query
from ckpt_observe.core.retention import Decision

T = TypeVar("T")


class AsyncCheckpointer:
    """A Checkpointer for coroutines. Cancelling an awaiting coroutine does not stop an operation that a thread has begun."""

    def __init__(self, checkpointer: Checkpointer, *, threads: int = 4) -> None:
        self.checkpointer = checkpointer
        self._workers = Workers(threads, "ckpt-async")

    async def save(self, task: str, state: Any, **label: Any) -> CheckpointInfo:
        """Like `Checkpointer.save`. The state is serialized before the first await, so it may be changed afterwards."""
        return await asyncio.wrap_future(self._start_save(task, state, **label))

    def _start_save(self, task: str, state: Any, **label: Any) -> Future[CheckpointInfo]:
        """Serialize the state and save it in a thread, also if the coroutine that waits for the future is cancelled."""
        staged = self.checkpointer.stage(state)
        return self._workers.submit(lambda: self.checkpointer.save(task, staged, **label))

    async def load(self, task: str, id: str | None = None) -> Any:
        return await self._run(lambda: self.checkpointer.load(task, id))

    async def restore(self, task: str, id: str | None = None, *, into: Any = None) -> Restored[Any]:
        return await self._run(lambda: self.checkpointer.restore(task, id, into=into))

    async def drill(self, task: str) -> Drill:
        return await self._run(lambda: self.checkpointer.drill(task))

    async def delete(self, task: str, id: str) -> CheckpointInfo | None:
        return await self._run(lambda: self.checkpointer.delete(task, id))

    async def list(self, task: str) -> CheckpointInfos:
        return await self._run(lambda: self.checkpointer.list(task))

    async def find(self, query: Query) -> CheckpointInfos:
        return await self._run(lambda: self.checkpointer.find(query))

    async def resolve(self, task: str, reference: str) -> CheckpointInfo:
        return await self._run(lambda: self.checkpointer.resolve(task, reference))

    async def fork(self, task: str, new_task: str, id: str | None = None) -> CheckpointInfo:
        return await self._run(lambda: self.checkpointer.fork(task, new_task, id))

    async def plan(self, task: str) -> Sequence[Decision]:
        return await self._run(lambda: self.checkpointer.plan(task))

    async def prune(self, task: str, plan: Sequence[Decision] | None = None) -> CheckpointInfos:
        return await self._run(lambda: self.checkpointer.prune(task, plan))

    async def verify(self, task: str | None = None, **options: Any) -> Sequence[Finding]:
        """Like `Checkpointer.verify`."""
        return await self._run(lambda: self.checkpointer.verify(task, **options))

    async def close(self) -> None:
        await asyncio.to_thread(self._workers.close)
        self.checkpointer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._workers.submit(call))
