"""A host program that reads one command per line: `save KEY COUNT`, `hang KEY`, `flush`, `fork KEY`. It answers `done` or `failed`."""

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
    """Fork a child that saves, starts another save, and is killed during it."""
    child = os.fork()
    if not child:
        save(f"{key} ended")
        with ckpt_observe.checkpoint("save", id=f"{key} open") as operation, operation.phase("write"):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


for line in sys.stdin:
    command, _, argument = line.strip().partition(" ")
    if command == "save":
        key, _, count = argument.partition(" ")
        for number in range(int(count)):
            save(f"{key} {number}")
    elif command == "fork":
        fork(argument)
    elif command == "flush" and not watch.flush(60):
        print("failed", flush=True)
        continue
    elif command == "hang":
        with ckpt_observe.checkpoint("save", id=argument) as operation, operation.phase("write"):
            print("done", flush=True)
            sys.stdin.read()
    print("done", flush=True)
