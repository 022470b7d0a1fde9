"""A program that saves and loads without end, until it is killed: `python -m tests.faults.saver DIRECTORY URL [HOOK]`."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import ckpt_observe
from ckpt_observe.core import Checkpointer

STATE = {"messages": [f"message {number}" for number in range(300)], "n": 1}


def main(directory: str, url: str, hook: str = "") -> None:
    """Observe this process in `directory`, and print `ready` after the first save. With a hook, the second save never gets further."""
    gate = threading.Event()
    root = Path(directory)
    watch = ckpt_observe.observe(exporters="local", dir=root / "state", pages_dir=root / "pages")
    checkpointer = Checkpointer(url, keep_last=5)
    checkpointer.save("run-1", STATE)
    watch.flush(timeout=60)  # the threads of the delivery have started, and no longer compete for the GIL
    if hook:
        checkpointer.hooks = (lambda _: (print("ready", flush=True), gate.wait()),)
    else:
        print("ready", flush=True)
    step = 0
    while True:
        step += 1
        checkpointer.save("run-1", STATE, step=step)
        checkpointer.load("run-1")


if __name__ == "__main__":
    main(*sys.argv[1:])
