"""Programs for the alerts to be raised by: each does its scene, says so, waits for a line on its input, and puts it right."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import ckpt_observe
from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores.file import FileStore
from ckpt_observe.errors import IntegrityError, SerializationError

RUN = "run-1"


def until_told() -> None:
    print("done", flush=True)
    sys.stdin.readline()


def keeper(_checkpoints: str) -> None:
    """Serves the metrics of all, as an agent would, and finds what the dead left."""
    until_told()


def well(_checkpoints: str) -> None:
    """Own code that saves as it should, and ends."""
    with ckpt_observe.task("well", id=RUN, interval=60):
        for step in range(4):
            with ckpt_observe.checkpoint("save", step=step) as save, save.phase("write"):
                time.sleep(0.3)
    until_told()


def failing(checkpoints: str) -> None:
    """Three saves in a row that cannot be; then one that can."""
    checkpointer = Checkpointer(checkpoints)
    with ckpt_observe.task("failing", id=RUN):
        checkpointer.save(RUN, {"step": 0})
        for _ in range(3):
            try:
                checkpointer.save(RUN, {"socket": object()})
            except SerializationError:
                pass
        until_told()
        checkpointer.save(RUN, {"step": 1})


def stalled(checkpoints: str) -> None:
    """Means to save every second, and stops doing so."""
    with ckpt_observe.task("stalled", id=RUN, interval=1):
        Checkpointer(checkpoints).save(RUN, {"step": 0})
        until_told()


def damaged(checkpoints: str) -> None:
    """A bit of the stored checkpoint is not what it was; then another checkpoint is saved and read back."""
    checkpointer = Checkpointer(checkpoints)
    with ckpt_observe.task("damaged", id=RUN):
        saved = checkpointer.save(RUN, {"weights": [0.5] * 100})
        file = next(path for path in Path(checkpoints).rglob("*") if saved.id in path.name and path.is_file())
        file.write_bytes(file.read_bytes().replace(b"0.5", b"0.6"))
        try:
            checkpointer.load(RUN)
        except IntegrityError:
            pass
        until_told()
        checkpointer.save(RUN, {"weights": [0.5] * 100})
        checkpointer.load(RUN)


class Fatal(FileStore):
    def put(self, info, blob):
        os.kill(os.getpid(), signal.SIGKILL)


def killed(checkpoints: str) -> None:
    """Dies in the middle of its second save."""
    with ckpt_observe.task("killed", id=RUN):
        Checkpointer(checkpoints).save(RUN, {"step": 0})
        Checkpointer(Fatal(checkpoints)).save(RUN, {"step": 1})


if __name__ == "__main__":
    watch = ckpt_observe.observe()
    {scene.__name__: scene for scene in (keeper, well, failing, stalled, damaged, killed)}[sys.argv[1]](sys.argv[2])
    watch.close(60)
