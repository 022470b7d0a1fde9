"""Background and awaitable saves."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import threading

import pytest

from ckpt_observe.core import Checkpointer, Query, hooks
from ckpt_observe.core.aio import AsyncCheckpointer
from ckpt_observe.core.background import BackgroundCheckpointer
from ckpt_observe.core.codecs import GzipCodec
from ckpt_observe.core.plugins import codecs
from ckpt_observe.core.retention import KeepLast
from ckpt_observe.errors import CapacityError, CheckpointNotFoundError, ConfigError, ConflictError, SerializationError, StorageError


def test_state_is_captured_at_the_call():
    """A background save writes the state as it was at the call, even if the program changes it afterwards."""
    checkpointer = Checkpointer("memory://")
    state = {"n": 1}
    with BackgroundCheckpointer(checkpointer) as background:
        future = background.save("t", state, step=1)
        state["n"] = 2
    assert checkpointer.load("t", future.result().id) == {"n": 1}


def test_compression_runs_on_another_thread(monkeypatch):
    """A background save serializes on the thread of the caller, and compresses and writes on another one."""
    threads = []

    class ThreadRecordingCodec(GzipCodec):
        def compress(self, data):
            threads.append(threading.get_ident())
            return super().compress(data)

    codecs.register("recording", ThreadRecordingCodec)
    monkeypatch.setattr(ThreadRecordingCodec, "name", "gzip")
    with BackgroundCheckpointer(Checkpointer("memory://", compression="recording")) as background:
        background.save("t", {"n": 1}).result()
    [thread] = threads
    assert thread != threading.get_ident()


def test_errors_are_raised_by_the_call_or_by_the_future():
    """A state that cannot be serialized raises at the call; a failed write raises from the future of that save."""
    checkpointer = Checkpointer("memory://")
    with BackgroundCheckpointer(checkpointer) as background:
        with pytest.raises(SerializationError):
            background.save("t", {"bad": object()})
        first, second = background.save("t", {"n": 1}, id="a"), background.save("t", {"n": 2}, id="a")
        assert first.result().id == "a"
        with pytest.raises(ConflictError):
            second.result()


def test_failed_background_save_is_logged(monkeypatch, caplog):
    """A failed background save is logged, even if its future is discarded."""
    checkpointer = Checkpointer("memory://")
    monkeypatch.setattr(checkpointer.store, "put", lambda info, blob: (_ for _ in ()).throw(CapacityError("disk full")))
    with BackgroundCheckpointer(checkpointer) as background:
        background.save("t", {"n": 1})
    assert "Cannot save a checkpoint of 't': disk full" in caplog.text


def test_closed_background_checkpointer_and_zero_depth():
    """A save after `close` raises StorageError; a depth of 0 raises ConfigError, because every save would wait forever."""
    background = BackgroundCheckpointer(Checkpointer("memory://"), depth=1)
    background.close()
    for _ in range(2):
        with pytest.raises(StorageError) as caught:
            background.save("t", {})
        assert caught.value.code == "storage.closed"
    with pytest.raises(ConfigError):
        BackgroundCheckpointer(Checkpointer("memory://"), depth=0)


def test_closed_async_checkpointer_and_zero_threads():
    """A call after `close` raises StorageError; 0 threads raise ConfigError."""

    async def main():
        checkpointer = AsyncCheckpointer(Checkpointer("memory://"))
        await checkpointer.close()
        for call in (checkpointer.save("t", {}), checkpointer.load("t")):
            with pytest.raises(StorageError) as caught:
                await call
            assert caught.value.code == "storage.closed"

    asyncio.run(main())
    with pytest.raises(ConfigError):
        AsyncCheckpointer(Checkpointer("memory://"), threads=0)


def succeeds_in_child(call):
    """Return whether the call succeeds in a forked child."""
    pid = os.fork()
    if not pid:
        signal.alarm(20)  # so that it does not wait forever
        try:
            call()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def test_forked_child_has_its_own_threads(tmp_path, monkeypatch):
    """A forked child saves on its own threads, and does not wait for saves that its parent has in progress."""
    checkpointer = Checkpointer(tmp_path)
    background, awaitable = BackgroundCheckpointer(checkpointer, depth=1), AsyncCheckpointer(checkpointer)
    asyncio.run(awaitable.save("t", {"n": 0}, id="before"))
    parent, gate, put = os.getpid(), threading.Event(), checkpointer.store.put
    monkeypatch.setattr(checkpointer.store, "put", lambda info, blob: (os.getpid() != parent or gate.wait(), put(info, blob)))
    background.save("t", {"n": 1}, id="parent")
    try:
        assert succeeds_in_child(lambda: background.save("t", {"n": 2}, id="background").result())
        assert succeeds_in_child(lambda: asyncio.run(awaitable.save("t", {"n": 3}, id="awaited")))
    finally:
        gate.set()
        background.close()
    assert {info.id for info in checkpointer.list("t")} == {"before", "parent", "background", "awaited"}
    assert not succeeds_in_child(lambda: background.save("t", {}))  # closed in the parent, so closed in the child


def test_waiting_saves_are_bounded(monkeypatch):
    """If the store hangs, at most `depth` saves wait in memory; the next call blocks."""
    checkpointer = Checkpointer("memory://")
    gate, third_saved = threading.Event(), threading.Event()
    original = checkpointer.store.put
    monkeypatch.setattr(checkpointer.store, "put", lambda info, blob: (gate.wait(), original(info, blob)))
    with BackgroundCheckpointer(checkpointer, depth=2) as background:
        background.save("t", {"n": 1})
        background.save("t", {"n": 2})
        thread = threading.Thread(target=lambda: (background.save("t", {"n": 3}), third_saved.set()))
        thread.start()
        assert not third_saved.wait(0.05)
        gate.set()
        assert third_saved.wait(10)
        thread.join()
    assert len(checkpointer.list("t")) == 3


def test_context_variables_reach_the_other_thread(monkeypatch):
    """A background save runs in the context of its caller, so that a trace continues on the other thread."""
    current = contextvars.ContextVar("current", default="nobody")
    monkeypatch.setattr(hooks, "providers", [lambda: {"user": current.get()}])
    current.set("caller")
    with BackgroundCheckpointer(Checkpointer("memory://")) as background:
        assert background.save("t", {}).result().context == {"user": "caller"}


def test_async_operations(tmp_path):
    """Every operation can be awaited, many at once, without blocking the event loop."""

    async def main():
        async with AsyncCheckpointer(Checkpointer(tmp_path)) as checkpointer:
            infos = await asyncio.gather(*(checkpointer.save("t", {"n": n}, step=n, id=str(n)) for n in range(10)))
            assert [info.step for info in infos] == list(range(10))
            assert await checkpointer.load("t", "3") == {"n": 3}
            assert (await checkpointer.restore("t", "4")).next_step == 5
            await checkpointer.delete("t", "5")
            assert len(await checkpointer.list("t")) == 9
            with pytest.raises(CheckpointNotFoundError):
                await checkpointer.load("t", "5")

    asyncio.run(main())


def test_async_queries(tmp_path):
    """Queries, forks, retention and verification can be awaited, too; only `open`, `batch` and `stage`, which return objects, cannot."""
    awaitable = {name for name, value in vars(AsyncCheckpointer).items() if not name.startswith("_") and callable(value)}
    assert {name for name, value in vars(Checkpointer).items() if not name.startswith("_") and callable(value)} - awaitable == {
        "open",
        "batch",
        "stage",
    }

    async def main():
        async with AsyncCheckpointer(Checkpointer(tmp_path)) as checkpointer:
            for n in range(4):
                await checkpointer.save("t", {"n": n}, step=n, id=f"c{n}")
            assert [info.id for info in await checkpointer.find(Query(max_step=1))] == ["c1", "c0"]
            assert (await checkpointer.resolve("t", "latest~2")).id == "c1"
            assert (await checkpointer.drill("t")).info.id == "c3"
            assert (await checkpointer.fork("t", "u", "c1")).parent == "c1"
            assert [finding.good for finding in await checkpointer.verify("t", sample=2)] == [True, True]
            checkpointer.checkpointer.retention = KeepLast(1)
            assert sum(not decision.keep for decision in await checkpointer.plan("t")) == 3
            assert [info.id for info in await checkpointer.prune("t")] == ["c2", "c1", "c0"]

    asyncio.run(main())


@pytest.mark.parametrize("format", ["json", "pickle"])
def test_staged_state_is_accepted_by_every_save(format):
    """A state returned by `stage` can be saved in the background, awaited or in a batch, and is not serialized again."""
    checkpointer = Checkpointer("memory://", format=format)
    with BackgroundCheckpointer(checkpointer) as background, checkpointer.batch() as batch:
        background.save("background", checkpointer.stage({"n": 1}))
        batch.save("batch", checkpointer.stage({"n": 1}))
    assert checkpointer.load("background") == checkpointer.load("batch") == {"n": 1}


def test_state_staged_for_another_format_is_refused():
    """A state staged for another format is refused: the header would name the wrong format, and JSON 7 would be read as MessagePack 55."""
    staged = Checkpointer("memory://", format="json").stage(7)
    with pytest.raises(ConfigError):
        Checkpointer("memory://", format="msgpack").save("t", staged)
