"""Programs that cause alerts: each causes one, prints `done`, waits for a line on its input, and fixes the cause."""

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


def wait_for_input() -> None:
    print("done", flush=True)
    sys.stdin.readline()


def keeper(_checkpoints: str) -> None:
    """Serve the metrics of all processes, as a daemon would, and adopt the records of dead ones."""
    wait_for_input()


def well(_checkpoints: str) -> None:
    """Save without problems, and end."""
    with ckpt_observe.task("well", id=RUN, interval=60):
        for step in range(4):
            with ckpt_observe.checkpoint("save", step=step) as save, save.phase("write"):
                time.sleep(0.3)
    wait_for_input()


def failing(checkpoints: str) -> None:
    """Fail to save three times, then succeed."""
    checkpointer = Checkpointer(checkpoints)
    with ckpt_observe.task("failing", id=RUN):
        checkpointer.save(RUN, {"step": 0})
        for _ in range(3):
            try:
                checkpointer.save(RUN, {"socket": object()})
            except SerializationError:
                pass
        wait_for_input()
        checkpointer.save(RUN, {"step": 1})


def stalled(checkpoints: str) -> None:
    """Declare an interval of a second and stop saving."""
    with ckpt_observe.task("stalled", id=RUN, interval=1):
        Checkpointer(checkpoints).save(RUN, {"step": 0})
        wait_for_input()


def damaged(checkpoints: str) -> None:
    """Damage a stored checkpoint, then save and load another one."""
    checkpointer = Checkpointer(checkpoints)
    with ckpt_observe.task("damaged", id=RUN):
        saved = checkpointer.save(RUN, {"weights": [0.5] * 100})
        file = next(path for path in Path(checkpoints).rglob("*") if saved.id in path.name and path.is_file())
        file.write_bytes(file.read_bytes().replace(b"0.5", b"0.6"))
        try:
            checkpointer.load(RUN)
        except IntegrityError:
            pass
        wait_for_input()
        checkpointer.save(RUN, {"weights": [0.5] * 100})
        checkpointer.load(RUN)


class Fatal(FileStore):
    def put(self, info, blob):
        os.kill(os.getpid(), signal.SIGKILL)


def killed(checkpoints: str) -> None:
    """Die during the second save."""
    with ckpt_observe.task("killed", id=RUN):
        Checkpointer(checkpoints).save(RUN, {"step": 0})
        Checkpointer(Fatal(checkpoints)).save(RUN, {"step": 1})


if __name__ == "__main__":
    watch = ckpt_observe.observe()
    {scene.__name__: scene for scene in (keeper, well, failing, stalled, damaged, killed)}[sys.argv[1]](sys.argv[2])
    watch.close(60)
