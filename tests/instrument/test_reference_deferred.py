"""Saves of the reference core that are written later: each is one operation, from its first line until it is durable or has failed."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.aio import AsyncCheckpointer
from ckpt_observe.core.background import BackgroundCheckpointer
from ckpt_observe.core.stores.memory import MemoryStore
from ckpt_observe.errors import CapacityError, CheckpointError
from ckpt_observe.semconv import attributes as names

UNSUPPORTED = {"socket": object()}


def save_in_background(checkpointer, state):
    with BackgroundCheckpointer(checkpointer) as background:
        return background.save("run-1", state, step=7).result()


def save_awaited(checkpointer, state):
    async def save():
        async with AsyncCheckpointer(checkpointer) as awaitable:
            return await awaitable.save("run-1", state, step=7)

    return asyncio.run(save())


def save_in_batch(checkpointer, state):
    with checkpointer.batch() as batch:
        return batch.save("run-1", state, step=7)


def save_staged(checkpointer, state):
    return checkpointer.save("run-1", checkpointer.stage(state), step=7)


SAVES = (save_in_background, save_awaited, save_in_batch, save_staged)


@pytest.fixture
def operations(watch, stored_spans):
    """A function that returns each recorded operation, oldest first, with the names of its phases."""

    def read():
        assert watch.flush(timeout=30)
        spans = sorted(stored_spans(), key=lambda span: span.start_unix_nano)
        return [
            (
                span,
                [
                    phase.attributes[names.PHASE]
                    for phase in spans
                    if phase.parent_span_id == span.span_id and names.PHASE in phase.attributes
                ],
            )
            for span in spans
            if names.OPERATION in span.attributes
        ]

    return read


@pytest.mark.parametrize("save", SAVES)
def test_failed_serialization_is_a_failed_save(operations, save):
    """A state that cannot be serialized leaves one failed save, in the phase `serialize`."""
    with pytest.raises(CheckpointError):
        save(Checkpointer("memory://"), UNSUPPORTED)
    [(span, phases)] = operations()
    assert (span.name, span.status, phases) == ("checkpoint.save", "error", ["serialize"])
    assert (span.attributes[names.ERROR_CODE], span.attributes[names.ERROR_PHASE]) == ("serialization.unsupported_type", "serialize")
    assert (span.attributes.get(names.TASK_ID), span.attributes.get(names.STEP)) == ((None, None) if save is save_staged else ("run-1", 7))


@pytest.mark.parametrize("save", SAVES)
def test_failed_write_is_a_failed_save(operations, save):
    """A write that fails later leaves one failed save, in the phase `write`."""

    class FullStore(MemoryStore):
        def put(self, info, blob):
            raise CapacityError("disk full")

    with pytest.raises(CapacityError):
        save(Checkpointer(FullStore()), {"n": 1})
    [(span, _)] = operations()
    assert (span.name, span.status, span.attributes[names.ERROR_PHASE]) == ("checkpoint.save", "error", "write")


@pytest.mark.parametrize("save", [save_in_background, save_awaited])
def test_save_in_a_thread_is_one_operation(operations, save):
    """A save that serializes in the caller and writes in a thread has one span with the phases of both, and the checkpoint's header."""
    info = save(Checkpointer("memory://", compression="gzip"), {"n": 1})
    [(span, phases)] = operations()
    assert [phase for phase in phases if phase != "wait"] == ["serialize", "compress", "digest", "write", "validate"]
    assert (span.status, span.attributes[names.ID], span.attributes[names.DIGEST]) == ("ok", info.id, info.digest)
    assert info.context["traceparent"].split("-")[1:3] == [span.trace_id, span.span_id]


def test_staged_states_are_counted_once(operations):
    """A state that was only staged is no save, and the header of a checkpoint in a batch does not name a span that is not recorded."""
    checkpointer = Checkpointer("memory://")
    checkpointer.stage({"n": 1})
    info = save_in_batch(checkpointer, {"n": 2})
    [(commit, _)] = operations()
    assert commit.attributes[names.COUNT] == 1
    assert "traceparent" not in info.context


def test_saves_of_hooks_are_operations_of_their_own(operations):
    """A hook that saves during a background save leaves a span of its own, also if that save fails."""
    archive = Checkpointer("memory://")
    checkpointer = Checkpointer("memory://", hooks=[lambda event: event.moment == "before" and archive.save("archive", archive.stage(1))])
    save_in_background(checkpointer, {"n": 1})
    assert [span.attributes[names.TASK_ID] for span, _ in operations()] == ["run-1", "archive"]


def test_save_after_close_is_a_failed_save(operations):
    """A save with a closed BackgroundCheckpointer leaves a failed save."""
    background = BackgroundCheckpointer(Checkpointer("memory://"))
    background.close()
    with pytest.raises(CheckpointError):
        background.save("run-1", {"n": 1})
    [(span, _)] = operations()
    assert (span.status, span.attributes[names.ERROR_CODE]) == ("error", "storage.closed")


class GatedStore(MemoryStore):
    """Writes when the test opens the gate."""

    def __init__(self):
        super().__init__()
        self.writing, self.gate = threading.Event(), threading.Event()

    def put(self, info, blob):
        self.writing.set()
        assert self.gate.wait(30)
        super().put(info, blob)


def test_blocked_released_and_durable(operations):
    """The caller is blocked within its own call, and not while the writer waits at the gate; the save is durable after the gate opened."""
    store = GatedStore()
    with BackgroundCheckpointer(Checkpointer(store)) as background:
        before = time.perf_counter()
        background.save("run-1", {"n": 1})
        returned = time.perf_counter()
        assert store.writing.wait(30)
        opened = time.perf_counter()
        store.gate.set()
    [(span, phases)] = operations()
    assert phases == ["serialize", "wait", "digest", "write", "validate"]
    assert 0 < span.attributes[names.ASYNC_BLOCKED] == span.attributes[names.ASYNC_RELEASED] <= returned - before
    assert opened - returned <= span.attributes[names.ASYNC_DURABLE] <= span.seconds


def test_full_queue_blocks_the_next_save(operations):
    """The save that waits for a slot in the queue is blocked until an earlier one is durable, in the phase `wait`."""
    store, waiting = GatedStore(), threading.Event()

    class Slots(threading.BoundedSemaphore):
        def acquire(self):
            waiting.set()
            return super().acquire()

    with BackgroundCheckpointer(Checkpointer(store), depth=1) as background, ThreadPoolExecutor(1) as caller:
        background.save("run-1", {"n": 1}, step=1)
        assert store.writing.wait(30)
        background._slots.__class__ = Slots
        second = caller.submit(background.save, "run-1", {"n": 2}, step=2)
        assert waiting.wait(30)
        wait_began = time.perf_counter()
        opened = time.perf_counter()
        store.gate.set()
        second.result()
    [_, (span, phases)] = operations()
    assert (span.attributes[names.STEP], phases[:2]) == (2, ["serialize", "wait"])
    assert opened - wait_began <= span.attributes[names.ASYNC_BLOCKED]


@pytest.mark.parametrize("save", [save_in_background, save_awaited])
def test_late_error_of_an_async_save(operations, save):
    """A save that fails in the thread has the time for which its caller was blocked, and was never durable."""

    class FullStore(MemoryStore):
        def put(self, info, blob):
            raise CapacityError("disk full")

    with pytest.raises(CapacityError):
        save(Checkpointer(FullStore()), {"n": 1})
    [(span, _)] = operations()
    assert names.ASYNC_BLOCKED in span.attributes
    assert names.ASYNC_DURABLE not in span.attributes


def test_cancelled_wait_does_not_end_a_save(operations):
    """If the coroutine that awaits a save is cancelled while a thread writes, the save is recorded as the success that it becomes."""
    store = GatedStore()

    async def main():
        async with AsyncCheckpointer(Checkpointer(store)) as checkpointer:
            save = asyncio.ensure_future(checkpointer.save("run-1", {"n": 1}))
            assert await asyncio.to_thread(store.writing.wait, 30)
            save.cancel()
            with pytest.raises(asyncio.CancelledError):
                await save
            store.gate.set()

    asyncio.run(main())
    [(span, phases)] = operations()
    assert (span.attributes[names.OUTCOME], phases) == ("ok", ["serialize", "digest", "write", "validate"])
