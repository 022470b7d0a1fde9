"""A program that makes checkpoints in four threads and an asyncio loop, and tells an oracle what it is about to do and what it has done.

The oracle is a pipe: what `os.write` took is there, whatever happens to us. Each message is `<` or `>` (before, after), the operation's
key, and the step: `begin`, `+phase`, `-phase`, `end`; so whoever reads it knows between which two steps we died.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import ckpt_observe
from ckpt_observe import wiring
from ckpt_observe.exporter import Exporter
from ckpt_observe.span import to_json_line

THREADS = 4
COROUTINES = 3


class FileExporter(Exporter):
    """Keeps every copy of every span it is given, one a line."""

    name = "local"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "spans.jsonl"

    def send(self, spans):
        with open(self._path, "ab", buffering=0) as file:
            file.write("".join("\n" + to_json_line(span) + "\n" for span in spans).encode())  # apart from what a kill cut in half

    def close(self):
        pass


class Oracle:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, sign: str, key: str, what: str) -> None:
        os.write(self._fd, f"{sign} {key} {what}\n".encode())

    @contextmanager
    def step(self, key: str, what: str):
        self.say("<", key, what)
        yield
        self.say(">", key, what)

    @contextmanager
    def operation(self, key: str):
        operation = ckpt_observe.checkpoint("save", id=key)
        self.say("<", key, "begin")
        entered = operation.__enter__()
        self.say(">" if entered.span_id else "!", key, "begin")  # `!`: observation has ended, nothing is promised
        yield entered
        with self.step(key, "end"):
            operation.__exit__(None, None, None)

    @contextmanager
    def phase(self, key: str, operation, name: str):
        phase = operation.phase(name)
        with self.step(key, f"+{name}"):
            phase.__enter__()
        yield
        with self.step(key, f"-{name}"):
            phase.__exit__(None, None, None)


def saves(oracle: Oracle, actor: str) -> None:
    number = 0
    while True:
        key = f"{actor}.{number}"
        with oracle.operation(key) as operation:
            with oracle.phase(key, operation, "serialize"):
                sum(range(200))
            with oracle.phase(key, operation, "own step"), oracle.phase(key, operation, "compress"):
                sum(range(200))
            with oracle.phase(key, operation, "write"):
                operation.set({"checkpoint.size.stored": number})
            if number % 50 == 0:
                for _ in range(20):  # more than there are marks
                    with oracle.phase(key, operation, "commit"):
                        pass
        number += 1


async def async_saves(oracle: Oracle, actor: str) -> None:
    number = 0
    while True:
        key = f"{actor}.{number}"
        with oracle.operation(key) as operation:
            for name in ("stage", "write", "validate"):
                with oracle.phase(key, operation, name):
                    await asyncio.sleep(0)
        number += 1


async def async_world(oracle: Oracle) -> None:
    await asyncio.gather(*(async_saves(oracle, f"coroutine{number}") for number in range(COROUTINES)))


def start(directory: Path, fd: int) -> None:
    """Observe, and begin to work in the background."""
    wiring.EXPORTERS["local"] = lambda settings: FileExporter(settings.dir)
    oracle = Oracle(fd)
    ckpt_observe.observe(exporters="local", dir=directory / "state", pages_dir=directory / "pages", service="worker")
    for number in range(THREADS):
        threading.Thread(target=saves, args=(oracle, f"thread{number}"), daemon=True).start()
    threading.Thread(target=lambda: asyncio.run(async_world(oracle)), daemon=True).start()


if __name__ == "__main__":
    start(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdin.read()  # until whoever started us closes it
    ending = sys.argv[3]
    if ending == "os._exit":
        os._exit(7)
    if ending == "exception":
        raise RuntimeError("nobody catches this")
    sys.exit(3)
