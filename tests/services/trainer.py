"""A training run for the dashboards, with one stage for each word on standard input.

`round` runs every operation at least once, all successful. `grow` saves a state that grows for longer than the window of the dashboards, at last to a
slow store. `faults` has a process that is killed during a save, finds a damaged checkpoint,
and has saves that fail until the end. `hang` is a task whose next save is late and blocked in its store forever.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import ckpt_observe
from ckpt_observe.core import Checkpointer
from ckpt_observe.core.background import BackgroundCheckpointer
from ckpt_observe.core.stores.file import FileStore
from ckpt_observe.errors import IntegrityError, SerializationError
from ckpt_observe.semconv import attributes as names

RUN = "run-1"
GROWING_SAVES = 20
SLOW_SAVES = 3
"""More than 5 % of the saves, so that the 95th percentile shows them."""


class Stuck(FileStore):
    def put(self, info, blob):
        sys.stdin.read()


class Slow(FileStore):
    def put(self, info, blob):
        time.sleep(1.1)
        return super().put(info, blob)


class Fatal(FileStore):
    def put(self, info, blob):
        os.kill(os.getpid(), signal.SIGKILL)


class Trainer:
    def __init__(self, checkpoints):
        self.checkpoints, self.step = checkpoints, 0
        self.checkpointer = Checkpointer(checkpoints, compression="gzip", keep_last=3)
        self.background = BackgroundCheckpointer(self.checkpointer)
        self.state = {"step": 0, "weights": [0.5] * 100_000, "history": []}

    def save(self, save=None):
        self.step += 1
        self.state["history"] += [{"step": self.step, "loss": "0.1 " * 5000}]
        return (save or self.checkpointer.save)(RUN, {**self.state, "step": self.step}, step=self.step)

    def round(self):
        for _ in range(3):
            self.save()
        self.save(self.background.save).result()
        with ckpt_observe.checkpoint("save") as operation:
            operation.set({names.STRAGGLER_RANK: 1, names.STRAGGLER_PHASE: "write", names.STRAGGLER_DELAY: 2.5})
        with ckpt_observe.task("evaluate", id="e"):
            self.checkpointer.load(RUN)
        self.checkpointer.restore(RUN)
        self.checkpointer.delete(RUN, self.save().id)
        self.checkpointer.verify(RUN)
        self.checkpointer.list(RUN)

    def grow(self):
        for _ in range(GROWING_SAVES):
            self.state["history"] += [{"step": self.step, "loss": "0.1 " * 50_000}]
            self.save()
            time.sleep(0.5)
        slow = Checkpointer(Slow(self.checkpoints), compression="gzip", keep_last=3)
        for _ in range(SLOW_SAVES):
            self.save(slow.save)
        print("grown", flush=True)

    def faults(self):
        subprocess.run([sys.executable, __file__, self.checkpoints, "die"], check=False)
        damaged = self.save()
        path = next(Path(self.checkpoints).rglob(f"{damaged.id}.ckpt"))
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        try:
            self.checkpointer.load(RUN, damaged.id)
        except IntegrityError:
            self.checkpointer.verify(RUN, quarantine=True)
        self.checkpointer.restore(RUN)
        for _ in range(3):
            try:
                self.checkpointer.save(RUN, {"socket": object()})
            except SerializationError:
                pass

    def hang(self):
        with ckpt_observe.task("late", id="l", interval=0.1):
            self.checkpointer.save("late", {"step": 1})
            print("hanging", flush=True)
            Checkpointer(Stuck(self.checkpoints)).save("late", {"step": 2})


def main(checkpoints):
    trainer = Trainer(checkpoints)
    trainer.checkpointer.save("alone", {"step": 1})
    with ckpt_observe.task("train", id=RUN, interval=3600):
        for word in sys.stdin:
            getattr(trainer, word.strip())()


def die(checkpoints):
    with ckpt_observe.task("train", id=RUN, interval=3600):
        Checkpointer(Fatal(checkpoints)).save(RUN, {"step": 0})


if __name__ == "__main__":
    watch = ckpt_observe.observe()
    (die if len(sys.argv) > 2 else main)(sys.argv[1])
    watch.close(0)
