"""Programs in the troubles that the runbook describes. Each runs one task, which is named after the scene, until it gets a line on its input."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import ckpt_observe
from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores.file import FileStore
from ckpt_observe.errors import CheckpointError
from ckpt_observe.semconv import attributes as names

RUN = "run-1"
FAST, SLOW = 25, 1.2
LARGE = 100_000_000
"""Bytes of memory that the killed program uses in addition."""


def wait_for_input():
    print("done", flush=True)
    sys.stdin.readline()


def pause():
    """Let Prometheus scrape. The pace of these programs is that of their trouble; no test waits for it."""
    time.sleep(1)


def broken(store, trouble, method="put"):
    """A checkpointer whose store is in trouble whenever this method is called: it fails, hangs, is slow or kills the process."""
    file_store = FileStore(store)
    original = getattr(file_store, method)

    def troubled(*args, **kwargs):
        trouble()
        return original(*args, **kwargs)

    setattr(file_store, method, troubled)
    return Checkpointer(file_store)


def raising(error):
    def trouble():
        raise error

    return trouble


def attempt(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except (CheckpointError, OSError):
        pass


def keeper(_store):
    """Serve the metrics of all programs, as a daemon would, and adopt the records of dead ones."""
    wait_for_input()


def never(store):
    """No save ever succeeds, because of a value that the format does not support. Then one does."""
    checkpointer = Checkpointer(store)
    with ckpt_observe.task("never", id=RUN, interval=1):
        for step in range(3):
            attempt(checkpointer.save, RUN, {"socket": object()}, step=step)
            pause()
        wait_for_input()
        checkpointer.save(RUN, {"step": 3}, step=3)
        wait_for_input()


def failing(store):
    """The disk is full after the first save. Then there is space again."""
    full = broken(store, raising(OSError(errno.ENOSPC, "No space left on device")))
    with ckpt_observe.task("failing", id=RUN):
        Checkpointer(store).save(RUN, {"step": 0}, step=0)
        for step in range(1, 4):
            attempt(full.save, RUN, {"step": step}, step=step)
        wait_for_input()
        Checkpointer(store).save(RUN, {"step": 4}, step=4)
        wait_for_input()


def stale(store):
    """The program waits for something else and does not save."""
    with ckpt_observe.task("stale", id=RUN, interval=1):
        Checkpointer(store).save(RUN, {"step": 0}, step=0)
        wait_for_input()


def save_flapping(store):
    """Every third save fails because the store does not answer in time. After the first failure, wait until Prometheus has seen it.

    Prometheus counts from the first value that it scrapes: if it saw all failures at once, none would be an increase.
    """
    away = broken(store, raising(TimeoutError("the store did not answer")))
    for step in range(12):
        attempt((away if step % 3 == 2 else Checkpointer(store)).save, RUN, {"step": step}, step=step)
        if step == 2:
            wait_for_input()


def flapping(store):
    """Every third save fails."""
    with ckpt_observe.task("flapping", id=RUN):
        save_flapping(store)
        wait_for_input()


def sampled(store):
    """Every third save fails, and the process is killed during the last one. The task is named after its store."""
    with ckpt_observe.task(Path(store).name, id=RUN):
        save_flapping(store)
        wait_for_input()
        broken(store, lambda: os.kill(os.getpid(), signal.SIGKILL)).save(RUN, {"step": 12}, step=12)


def stuck(store):
    """A save hangs in its store."""
    with ckpt_observe.task("stuck", id=RUN, interval=1):
        for step in range(6):
            Checkpointer(store).save(RUN, {"step": step}, step=step)
        broken(store, wait_for_input).save(RUN, {"step": 6}, step=6)


def killed(store):
    """The process is killed during a save, while it uses much memory."""

    def die():
        copy = bytearray(os.urandom(1 << 20)) * (LARGE >> 20)
        print("done", flush=True)
        time.sleep(1)  # several heartbeats
        os.kill(os.getpid(), signal.SIGKILL)
        del copy

    with ckpt_observe.task("killed", id=RUN):
        Checkpointer(store).save(RUN, {"step": 0}, step=0)
        wait_for_input()  # for a scrape without an interruption
        broken(store, die).save(RUN, {"step": 1}, step=1)


def damaged(store):
    """The first load ever finds a damaged checkpoint. After the remedy, a load succeeds."""
    find_damage("damaged", store, Checkpointer.load)


def checked(store):
    """The first verify ever finds a damaged checkpoint. After the remedy, it finds none."""
    find_damage("checked", store, Checkpointer.verify)


def find_damage(task, store, read):
    checkpointer = Checkpointer(store)
    with ckpt_observe.task(task, id=RUN):
        checkpointer.save(RUN, {"weights": [0.5] * 100}, step=0)
        saved = checkpointer.save(RUN, {"weights": [0.5] * 100}, step=1)
        file = next(path for path in Path(store).rglob("*") if saved.id in path.name and path.is_file())
        file.write_bytes(file.read_bytes().replace(b"0.5", b"0.6"))
        wait_for_input()  # for a scrape without damage
        attempt(read, checkpointer, RUN)
        wait_for_input()
        read(checkpointer, RUN)
        wait_for_input()


def altered(store):
    """A serializer returns a key with another type."""
    checkpointer = Checkpointer(store)
    with ckpt_observe.task("altered", id=RUN):
        checkpointer.save(RUN, {"step": 3}, step=3)
        checkpointer.serializer.decode = lambda _: {"step": "3"}
        checkpointer.restore(RUN)
        wait_for_input()


def unreadable(store):
    """The store does not answer when the program restores, and when it tries again."""
    away = broken(store, raising(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")), "get")
    with ckpt_observe.task("unreadable", id=RUN):
        Checkpointer(store).save(RUN, {"step": 0}, step=0)
        for _ in range(2):
            attempt(away.restore, RUN)
            wait_for_input()


def growing(store):
    """A list of messages grows; yesterday the checkpoints had 2 MB."""
    checkpointer, messages = Checkpointer(store), ["x" * 1000] * 2000
    with ckpt_observe.task("growing", id=RUN):
        for step in range(3):
            checkpointer.save(RUN, {"step": step, "messages": messages}, step=step)
            messages = messages + ["y" * 1000] * 2000
            pause()
        wait_for_input()


def filling(store):
    """A save was so large that only one more fits on the file system."""
    checkpointer = Checkpointer(store)
    with ckpt_observe.task("filling", id=RUN):
        for step in range(5):
            checkpointer.save(RUN, {"step": step}, step=step)
        size = shutil.disk_usage(store).free // 2
        with ckpt_observe.checkpoint("save", step=5, attributes={names.SIZE_STORED: size, names.LOCATION: Path(store).as_uri()}):
            pass
        wait_for_input()


def slow(store):
    """After many fast saves, the store is throttled."""
    with ckpt_observe.task("slow", id=RUN):
        checkpointer = Checkpointer(store)
        checkpointer.save(RUN, {"step": 0}, step=0)
        wait_for_input()  # for a scrape before the others, or they would not be an increase
        for step in range(1, FAST):
            checkpointer.save(RUN, {"step": step}, step=step)
            time.sleep(0.2)
        wait_for_input()
        throttled = broken(store, lambda: time.sleep(SLOW))
        for step in range(FAST, FAST + 4):
            throttled.save(RUN, {"step": step}, step=step)
        wait_for_input()


def undelivered(store):
    """The server for traces does not answer."""
    with ckpt_observe.task("undelivered", id=RUN):
        Checkpointer(store).save(RUN, {"step": 0}, step=0)
        wait_for_input()


def dropped(_store):
    """An operation has more events than its pages can hold."""
    with ckpt_observe.task("dropped", id=RUN):
        wait_for_input()  # for a scrape without drops
        with ckpt_observe.checkpoint("save") as save:
            for number in range(1000):
                save.add_event("tick", {"number": number, "text": "x" * 200})
        wait_for_input()


SCENES = {
    scene.__name__: scene
    for scene in (
        never,
        failing,
        stale,
        flapping,
        stuck,
        killed,
        damaged,
        checked,
        altered,
        unreadable,
        growing,
        filling,
        slow,
        undelivered,
        dropped,
    )
}

if __name__ == "__main__":
    watch = ckpt_observe.observe()
    {**SCENES, "keeper": keeper, "sampled": sampled}[sys.argv[1]](sys.argv[2])
    watch.close(60)
