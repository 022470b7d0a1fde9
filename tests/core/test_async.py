"""Saves behind the caller, and awaited."""

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


def test_state_is_frozen_when_given():
    """N9: what is saved behind is the state at the call, whatever the program does to it meanwhile."""
    checkpointer = Checkpointer("memory://")
    state = {"n": 1}
    with BackgroundCheckpointer(checkpointer) as behind:
        future = behind.save("t", state, step=1)
        state["n"] = 2
    assert checkpointer.load("t", future.result().id) == {"n": 1}


def test_compression_is_off_the_callers_thread(monkeypatch):
    """K10: compressing and writing happen on another thread; serializing on the caller's."""
    threads = []

    class Watched(GzipCodec):
        def compress(self, data):
            threads.append(threading.get_ident())
            return super().compress(data)

    codecs.register("watched", Watched)
    monkeypatch.setattr(Watched, "name", "gzip")
    with BackgroundCheckpointer(Checkpointer("memory://", compression="watched")) as behind:
        behind.save("t", {"n": 1}).result()
    [thread] = threads
    assert thread != threading.get_ident()


def test_errors_come_at_once_or_with_the_future():
    """N9: a state that cannot be saved is told at the call; a failed write by the future of that very save."""
    checkpointer = Checkpointer("memory://")
    with BackgroundCheckpointer(checkpointer) as behind:
        with pytest.raises(SerializationError):
            behind.save("t", {"bad": object()})
        first, second = behind.save("t", {"n": 1}, id="a"), behind.save("t", {"n": 2}, id="a")
        assert first.result().id == "a"
        with pytest.raises(ConflictError):
            second.result()


def test_failure_that_nobody_asks_for_is_logged(monkeypatch, caplog):
    """N9: a save behind that failed is not lost in silence, though its future was thrown away."""
    checkpointer = Checkpointer("memory://")
    monkeypatch.setattr(checkpointer.store, "put", lambda info, blob: (_ for _ in ()).throw(CapacityError("disk full")))
    with BackgroundCheckpointer(checkpointer) as behind:
        behind.save("t", {"n": 1})
    assert "Cannot save a checkpoint of 't': disk full" in caplog.text


def test_closed_or_without_room_is_typed():
    """A save after the end is an error of ours; room for none would wait for ever."""
    behind = BackgroundCheckpointer(Checkpointer("memory://"), depth=1)
    behind.close()
    for _ in range(2):
        with pytest.raises(StorageError) as caught:
            behind.save("t", {})
        assert caught.value.code == "storage.closed"
    with pytest.raises(ConfigError):
        BackgroundCheckpointer(Checkpointer("memory://"), depth=0)


def test_closed_or_without_threads_is_typed_when_awaited():
    """What is awaited after the end is an error of ours; without a thread nothing could be."""

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


def in_child(call):
    """Whether the call succeeds in a forked child."""
    pid = os.fork()
    if not pid:
        signal.alarm(20)  # in place of waiting for ever
        try:
            call()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0


def test_forked_child_saves_behind_and_awaited(tmp_path, monkeypatch):
    """N9: a child has none of its parent's threads: it saves with its own, and does not wait for what the parent still saves."""
    checkpointer = Checkpointer(tmp_path)
    behind, awaited = BackgroundCheckpointer(checkpointer, depth=1), AsyncCheckpointer(checkpointer)
    asyncio.run(awaited.save("t", {"n": 0}, id="before"))
    parent, gate, put = os.getpid(), threading.Event(), checkpointer.store.put
    monkeypatch.setattr(checkpointer.store, "put", lambda info, blob: (os.getpid() != parent or gate.wait(), put(info, blob)))
    behind.save("t", {"n": 1}, id="parent")
    try:
        assert in_child(lambda: behind.save("t", {"n": 2}, id="behind").result())
        assert in_child(lambda: asyncio.run(awaited.save("t", {"n": 3}, id="awaited")))
    finally:
        gate.set()
        behind.close()
    assert {info.id for info in checkpointer.list("t")} == {"before", "parent", "behind", "awaited"}
    assert not in_child(lambda: behind.save("t", {}))  # what was closed stays so


def test_waiting_saves_are_bounded(monkeypatch):
    """A store that hangs is felt: no more than the given number of saves wait in memory."""
    checkpointer = Checkpointer("memory://")
    gate, third = threading.Event(), threading.Event()
    original = checkpointer.store.put
    monkeypatch.setattr(checkpointer.store, "put", lambda info, blob: (gate.wait(), original(info, blob)))
    with BackgroundCheckpointer(checkpointer, depth=2) as behind:
        behind.save("t", {"n": 1})
        behind.save("t", {"n": 2})
        thread = threading.Thread(target=lambda: (behind.save("t", {"n": 3}), third.set()))
        thread.start()
        assert not third.wait(0.05)
        gate.set()
        assert third.wait(10)
        thread.join()
    assert len(checkpointer.list("t")) == 3


def test_surroundings_reach_the_other_thread(monkeypatch):
    """The context of the caller is that of the save: a trace goes on across the thread."""
    current = contextvars.ContextVar("current", default="nobody")
    monkeypatch.setattr(hooks, "providers", [lambda: {"who": current.get()}])
    current.set("caller")
    with BackgroundCheckpointer(Checkpointer("memory://")) as behind:
        assert behind.save("t", {}).result().context == {"who": "caller"}


def test_async_operations(tmp_path):
    """Every operation can be awaited, many at once, and the event loop goes on meanwhile."""

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


def test_async_questions(tmp_path):
    """Asking, going back, tidying up and checking can be awaited too; only `open`, `batch` and `stage`, which give objects to use, cannot."""
    offered = {name for name, value in vars(AsyncCheckpointer).items() if not name.startswith("_") and callable(value)}
    assert {name for name, value in vars(Checkpointer).items() if not name.startswith("_") and callable(value)} - offered == {
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
            assert (await checkpointer.fork("t", "u", "c1")).parent == "c1"
            assert [finding.good for finding in await checkpointer.verify("t", sample=2)] == [True, True]
            checkpointer.checkpointer.retention = KeepLast(1)
            assert sum(not decision.keep for decision in await checkpointer.plan("t")) == 3
            assert [info.id for info in await checkpointer.prune("t")] == ["c2", "c1", "c0"]

    asyncio.run(main())


@pytest.mark.parametrize("format", ["json", "pickle"])
def test_staged_state_is_taken_wherever_a_state_is(format):
    """N9: what `stage` gave can be saved behind, awaited and in a batch, and is not staged (or pickled) once more."""
    checkpointer = Checkpointer("memory://", format=format)
    with BackgroundCheckpointer(checkpointer) as behind, checkpointer.batch() as batch:
        behind.save("behind", checkpointer.stage({"n": 1}))
        batch.save("batch", checkpointer.stage({"n": 1}))
    assert checkpointer.load("behind") == checkpointer.load("batch") == {"n": 1}


def test_state_staged_for_another_format_is_refused():
    """A checkpoint whose header names another format than its bytes have would come back as another state: 7 as 55."""
    staged = Checkpointer("memory://", format="json").stage(7)
    with pytest.raises(ConfigError):
        Checkpointer("memory://", format="msgpack").save("t", staged)
