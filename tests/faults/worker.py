"""A program that saves in four threads and an asyncio loop, and reports each step to an oracle, before and after.

The oracle is a pipe: what `os.write` has accepted survives the death of the process. Each message is `<` or `>` (before, after), the key of
the operation, and the step: `begin`, `+phase`, `-phase` or `end`. So its reader knows within or between which steps the process died.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import ckpt_observe
from ckpt_observe import exporter_selection
from ckpt_observe.exporter import Exporter
from ckpt_observe.span import to_json_line

THREADS = 4
COROUTINES = 3


class FileExporter(Exporter):
    """Writes every copy of every span that it gets to a file, one per line."""

    name = "local"

    def __init__(self, directory: Path) -> None:
        self._path = directory / "spans.jsonl"

    def send(self, spans):
        with open(self._path, "ab", buffering=0) as file:
            file.write(
                "".join("\n" + to_json_line(span) + "\n" for span in spans).encode()
            )  # the newline in front separates it from half a line of a killed process

    def close(self):
        pass


class Oracle:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def report(self, sign: str, key: str, step: str) -> None:
        os.write(self._fd, f"{sign} {key} {step}\n".encode())

    @contextmanager
    def step(self, key: str, name: str):
        self.report("<", key, name)
        yield
        self.report(">", key, name)

    @contextmanager
    def operation(self, key: str):
        operation = ckpt_observe.checkpoint("save", id=key)
        self.report("<", key, "begin")
        entered = operation.__enter__()
        self.report(">" if entered.span_id else "!", key, "begin")  # `!`: not recorded, because observation has ended
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


def save_forever(oracle: Oracle, actor: str, texts: Sequence[str]) -> None:
    number = 0
    while True:
        key = f"{actor}.{number}"
        with oracle.operation(key) as operation:
            if texts and number % 10 == 0:
                plant(operation, texts[number // 10 % len(texts)])
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


def plant(operation, text: str) -> None:
    """Pass a text to an operation in several ways."""
    operation.set({"own.text": text, text: "own"})
    operation.add_event(text, {"own.text": [text]})
    operation.record_exception(ValueError(text))


async def async_save_forever(oracle: Oracle, actor: str) -> None:
    number = 0
    while True:
        key = f"{actor}.{number}"
        with oracle.operation(key) as operation:
            for name in ("stage", "write", "validate"):
                with oracle.phase(key, operation, name):
                    await asyncio.sleep(0)
        number += 1


async def async_save_concurrently(oracle: Oracle, prefix: str) -> None:
    await asyncio.gather(*(async_save_forever(oracle, f"{prefix}coroutine{number}") for number in range(COROUTINES)))


def start(directory: Path, fd: int) -> None:
    """Observe this process, and start to save in the background."""
    exporter_selection.EXPORTERS["local"] = lambda settings: FileExporter(settings.dir)
    ckpt_observe.observe(exporters="local", dir=directory / "state", pages_dir=directory / "pages", service="worker")
    start_saving(Oracle(fd))


def start_saving(oracle: Oracle, prefix: str = "", texts: Sequence[str] = ()) -> None:
    """Save in the background. Keys start with `prefix`; some operations carry one of the `texts`."""
    for number in range(THREADS):
        threading.Thread(target=save_forever, args=(oracle, f"{prefix}thread{number}", texts), daemon=True).start()
    threading.Thread(target=lambda: asyncio.run(async_save_concurrently(oracle, prefix)), daemon=True).start()


if __name__ == "__main__":
    start(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdin.read()  # until the parent closes it
    ending = sys.argv[3]
    if ending == "os._exit":
        os._exit(7)
    if ending == "exception":
        raise RuntimeError("nobody catches this")
    sys.exit(3)
