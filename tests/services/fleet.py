"""Many runs of an agent, each with its own trace. Of every ten, one fails, one is cancelled, and one starts a process that is killed with
SIGKILL during a write.

Arguments: a directory for checkpoints, the number of runs, and the seconds that the exit waits for the exporters.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import agent

import ckpt_observe
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import SerializationError


def fail(checkpointer, checkpoints, task):
    try:
        checkpointer.save(agent.RUN, {"socket": object()}, step=2)
    except SerializationError:
        pass


def cancel(checkpointer, checkpoints, task):
    try:
        with ckpt_observe.checkpoint("save", id="cancelled"):
            raise asyncio.CancelledError
    except asyncio.CancelledError:
        pass


def die(checkpointer, checkpoints, task):
    subprocess.run(
        [sys.executable, agent.__file__, "die", checkpoints, "0"], env={**os.environ, "TRACEPARENT": task.traceparent()}, check=False
    )


FATES = {3: fail, 5: cancel, 7: die}


def run(checkpoints, runs):
    checkpointer = Checkpointer(checkpoints, compression="gzip")
    for number in range(runs):
        with ckpt_observe.task("fleet", id=f"run-{number}") as task:
            checkpointer.save(agent.RUN, {"number": number}, step=1)
            FATES.get(number % 10, lambda *_: None)(checkpointer, checkpoints, task)
            checkpointer.save(agent.RUN, {"number": number}, step=3)


if __name__ == "__main__":
    watch = ckpt_observe.observe()
    run(sys.argv[1], int(sys.argv[2]))
    watch.close(float(sys.argv[3]))
