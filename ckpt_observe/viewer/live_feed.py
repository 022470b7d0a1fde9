"""What finishes and what is running, sent to all open pages. The state directory is read once for all of them, while there are any."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from ckpt_observe import query
from ckpt_observe.query import Changes
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.viewer.operation_row import OperationRow, row_of

POLL_SECONDS: Final = 0.5
_QUEUED: Final = 8
"""Updates that wait for a slow page. It then gets only the newest one, marked as incomplete."""
_encode = msgspec.json.Encoder().encode


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """What changed since the previous update."""

    finished: tuple[OperationRow, ...] = ()
    running: tuple[OperationRow, ...] = ()
    is_incomplete: bool = False
    """Whether earlier updates were skipped, so that the page has to be loaded again."""
    error: str = ""
    """Why the state directory cannot be read at the moment."""


class LiveFeed:
    """Reads changes in a thread of its own and hands them to the queues of open pages. Used by the event loop only."""

    def __init__(self, state: Path, adopt: Callable[[], None]) -> None:
        """`adopt` delivers the records of dead processes: an operation that was killed is then reported as interrupted."""
        self._state = state
        self._adopt = adopt
        self._queues: set[asyncio.Queue[bytes]] = set()
        self._executor = ThreadPoolExecutor(1, "ckpt_observe-viewer-feed")
        self._polling: asyncio.Task[None] | None = None

    def subscribe(self) -> asyncio.Queue[bytes]:
        """Return a queue that receives each update, as JSON."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(_QUEUED)
        self._queues.add(queue)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.get_running_loop().create_task(self._poll())
        return queue

    def unsubscribe(self, queue: asyncio.Queue[bytes]) -> None:
        self._queues.discard(queue)

    def close(self) -> None:
        """Stop reading."""
        if self._polling is not None:
            self._polling.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        cursor: str | None = None
        previous = b""
        while self._queues:
            cursor, update = await loop.run_in_executor(self._executor, self._read, cursor)
            encoded = _encode(update)
            if update.finished or encoded != previous:
                previous = encoded
                for queue in self._queues:
                    _put(queue, encoded, update)
            await asyncio.sleep(POLL_SECONDS)

    def _read(self, cursor: str | None) -> tuple[str | None, Update]:
        try:
            self._adopt()
            with query.open_traces(self._state) as traces:
                changes = traces.changes(cursor)
            return changes.cursor, _update_of(changes)
        except Exception as error:  # whatever it is: without updates, the pages would go on to say that they are live
            raise_host_exception(error)
            return cursor, Update(error=str(error) or type(error).__name__)


def _update_of(changes: Changes) -> Update:
    return Update(finished=tuple(map(row_of, changes.finished)), running=tuple(map(row_of, changes.running)))


def _put(queue: asyncio.Queue[bytes], encoded: bytes, update: Update) -> None:
    try:
        queue.put_nowait(encoded)
    except asyncio.QueueFull:
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(_encode(msgspec.structs.replace(update, is_incomplete=True)))
