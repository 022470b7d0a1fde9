"""A program that saves on command, one command a line: `save KEY COUNT`, `hang KEY`, `flush`, `fork KEY`, `kill`. Says what happened."""

from __future__ import annotations

import os
import signal
import sys

import ckpt_observe

watch = ckpt_observe.observe()


def save(key):
    with ckpt_observe.checkpoint("save", id=key) as operation, operation.phase("write"):
        pass


def fork(key):
    """A child that saves, begins another save, and dies in it."""
    child = os.fork()
    if not child:
        save(f"{key} ended")
        with ckpt_observe.checkpoint("save", id=f"{key} open") as operation, operation.phase("write"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    if word == "save":
        key, _, count = rest.partition(" ")
        for number in range(int(count)):
            save(f"{key} {number}")
    elif word == "fork":
        fork(rest)
    elif word == "flush" and not watch.flush(60):
        print("failed", flush=True)
        continue
    elif word == "hang":
        with ckpt_observe.checkpoint("save", id=rest) as operation, operation.phase("write"):
            print("done", flush=True)
            sys.stdin.read()
    print("done", flush=True)
