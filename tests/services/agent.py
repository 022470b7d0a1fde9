"""An agent in three processes: `work` saves, fails once, and starts `die`, which is killed with SIGKILL during a write; `resume` restores
what `work` saved and continues.

Arguments: the part, a directory for checkpoints, and the seconds that the exit waits for the exporters.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import ckpt_observe
from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores.file import FileStore
from ckpt_observe.errors import SerializationError

RUN = "run-1"


def work(checkpoints: str) -> None:
    checkpointer = Checkpointer(checkpoints, compression="gzip")
    with ckpt_observe.task("agent", id=RUN, user="ada", session="monday") as task:
        for step in range(1, 4):
            checkpointer.save(RUN, {"step": step, "messages": ["…"] * step}, step=step)
        try:
            checkpointer.save(RUN, {"socket": object()}, step=4)
        except SerializationError:
            pass
        subprocess.run(
            [sys.executable, __file__, "die", checkpoints, "0"], env={**os.environ, "TRACEPARENT": task.traceparent()}, check=False
        )


class Fatal(FileStore):
    def put(self, info, blob):
        os.kill(os.getpid(), signal.SIGKILL)


def die(checkpoints: str) -> None:
    Checkpointer(Fatal(checkpoints)).save(RUN, {"step": 4}, step=4)


def resume(checkpoints: str) -> None:
    with ckpt_observe.task("agent", id=RUN, user="ada", session="tuesday"), Checkpointer(checkpoints) as checkpointer:
        restored = checkpointer.restore(RUN)
        checkpointer.save(RUN, restored.state, step=restored.next_step)


def steps(checkpoints: str) -> None:
    """Save once for each line on standard input."""
    checkpointer = Checkpointer(checkpoints)
    with ckpt_observe.task("steps", id=RUN):
        for step, _ in enumerate(sys.stdin):
            checkpointer.save(RUN, {"step": step}, step=step)
            print("saved", flush=True)


if __name__ == "__main__":
    watch = ckpt_observe.observe()
    {"work": work, "die": die, "resume": resume, "steps": steps}[sys.argv[1]](sys.argv[2])
    watch.close(float(sys.argv[3]))
