"""The places on disk: can they be made and written, is there room, what does the trace store say."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from ckpt_observe.cli.doctor.finding import NOTE, OK, PROBLEM, Finding
from ckpt_observe.config import Settings
from ckpt_observe.delivery.outbox import SPOOL_LIMIT
from ckpt_observe.errors import CkptObserveError
from ckpt_observe.journal.locations import file_system, page_directory, private_directory
from ckpt_observe.tracestore import FILENAME, TraceWriter

_PROBE: Final = b"x" * 4096


def places(settings: Settings) -> Iterator[Finding]:
    yield from _tried("state directory", lambda: _state(settings.dir))
    yield from _tried("pages", lambda: _pages(settings))
    if "local" in settings.exporters:
        yield from _tried("trace store", lambda: _store(settings.dir))


def written(directory: Path) -> None:
    """Writes a file there for real, to the disk, and removes it. OSError says why that is not possible."""
    probe = directory / f"probe-{os.getpid()}"
    try:
        with probe.open("xb") as file:
            file.write(_PROBE)
            file.flush()
            os.fsync(file.fileno())
    finally:
        probe.unlink(missing_ok=True)


def _tried(subject: str, attempt: Callable[[], tuple[str, str]]) -> Iterator[Finding]:
    try:
        state, detail = attempt()
        yield Finding(state, subject, detail)
    except CkptObserveError as error:
        yield Finding(PROBLEM, subject, str(error))
    except OSError as error:
        yield Finding(PROBLEM, subject, f"{error.filename}: {error.strerror}")


def _state(directory: Path) -> tuple[str, str]:
    private_directory(directory)
    written(directory)
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    told = f"{directory} can be written, {free >> 20} MiB free"
    return (OK, told) if free >= SPOOL_LIMIT else (NOTE, f"{told}; while a server is away, a process may need {SPOOL_LIMIT >> 20} MiB")


def _pages(settings: Settings) -> tuple[str, str]:
    directory, mapped = page_directory(settings.dir, settings.pages_dir)
    written(directory)
    how = "mapped" if mapped else "written with pwrite: slower, because a map on this file system could kill the program"
    return OK, f"{directory} on {file_system(directory) or sys.platform}, {how}"


def _store(directory: Path) -> tuple[str, str]:
    path = directory / FILENAME
    if not path.exists():
        written(directory)
        return OK, f"{path} is made with the first trace"
    writer = TraceWriter(path)
    try:
        writer.write(())  # a transaction with nothing in it: locked, damaged or read-only is found, and nothing changed
    finally:
        writer.close()
    return OK, f"{path} can be written, {path.stat().st_size >> 10} KiB"
