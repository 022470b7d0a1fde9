"""Faults of every store, and of the file systems and processes of this machine. Each function injects the fault that its name says.

They are context managers: the fault lasts during the block, which gets what the action needs. `server_injections` has those of servers.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ckpt_observe.core import Checkpointer
from ckpt_observe.core.stores import git_repository, sqlite
from ckpt_observe.core.stores.git_repository import to_reference
from tests.fault_matrix.place import Place
from tests.fault_matrix.processes_under_fault import run_as_other_user, run_with_system_call_fault
from tests.fault_matrix.rig import ID, ProgramStore, Trouble
from tests.faults.power import mounted

LARGE = 96 << 20
"""Bytes of a state that does not fit into memory, and of the memory that is left for it: half."""
_WRITES = {"file": "fsync", "jsonl": "fsync", "sqlite": "fdatasync", "git": "fsync"}
_READS = {"file": "read", "jsonl": "read", "sqlite": "pread64", "git": "openat"}


class Interruption:
    """A value that sends this process a signal when it is pickled, or when it is unpickled."""

    def __init__(self, number: int, action: str) -> None:
        self._number, self._action = number, action

    def __reduce__(self):
        if self._action != "load":
            os.kill(os.getpid(), self._number)
        return _interrupt, (self._number,)


def _interrupt(number: int) -> None:
    if _armed:
        os.kill(os.getpid(), number)


_armed: list[bool] = []


def arm() -> None:
    """Let values be interrupted when they are unpickled. Before, a save that reads its state back would be interrupted, too."""
    _armed.append(True)


def fill(directory: Path) -> Path:
    """Write a file until there is no space left. Return its path."""
    path = directory / "filler"
    with open(path, "wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    return path


@contextmanager
def full_disk(place: Place) -> Iterator[Trouble]:
    with mounted(place.directory, "-t", "tmpfs", "-o", "size=4m", "tmpfs"):
        checkpointer = place.ready(place.checkpointer())
        fill(place.directory)
        yield Trouble(checkpointer, {"text": os.urandom(100_000).hex()})
        place.close()


@contextmanager
def read_only_disk(place: Place) -> Iterator[Trouble]:
    with mounted(place.directory, "-t", "tmpfs", "tmpfs"):
        place.ready(place.checkpointer())
        place.close()
        subprocess.run(["mount", "-o", "remount,ro", str(place.directory)], check=True)
        yield Trouble(place.checkpointer())
        place.close()


@contextmanager
def other_user(place: Place) -> Iterator[Trouble]:
    place.ready(place.checkpointer())
    place.close()
    yield Trouble(place.checkpointer(), run=run_as_other_user)


def _system_call_fault(place: Place, fault: str) -> Iterator[Trouble]:
    place.ready(place.checkpointer())
    calls = (_READS if place.action == "load" else _WRITES)[place.store]
    # git maps its objects into memory, so the error is in opening one.
    paths = map(str, place.directory.glob("store/*.git/objects/??/*")) if calls == "openat" else ()
    yield Trouble(place.checkpointer(), run=lambda observe: run_with_system_call_fault(observe, calls, fault, paths))


@contextmanager
def io_error(place: Place) -> Iterator[Trouble]:
    yield from _system_call_fault(place, "error=EIO")


@contextmanager
def quota_error(place: Place) -> Iterator[Trouble]:
    yield from _system_call_fault(place, "error=EDQUOT")


@contextmanager
def timeout_error(place: Place) -> Iterator[Trouble]:
    yield from _system_call_fault(place, "error=ETIMEDOUT")


@contextmanager
def stuck_git(place: Place) -> Iterator[Trouble]:
    place.monkeypatch.setattr(git_repository, "_TIMEOUT_SECONDS", 1)
    yield from _system_call_fault(place, "delay_enter=3s")


@contextmanager
def held_lock(place: Place) -> Iterator[Trouble]:
    checkpointer = place.ready(place.checkpointer())
    if place.store == "git":
        lock = Path(checkpointer.store.repository(place.task).path, "refs", "checkpoints", f"{to_reference(ID)}.lock")
        lock.touch()
        yield Trouble(checkpointer)
        return
    place.monkeypatch.setattr(sqlite, "_BUSY_SECONDS", 0.1)
    place.close()
    with closing(sqlite3.connect(place.directory / "store.db", isolation_level=None)) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        yield Trouble(place.checkpointer())


@contextmanager
def existing_id(place: Place) -> Iterator[Trouble]:
    yield Trouble(place.with_checkpoint())


@contextmanager
def missing_id(place: Place) -> Iterator[Trouble]:
    checkpointer = place.checkpointer()
    checkpointer.save(place.task, {}, id="other")
    yield Trouble(checkpointer)


@contextmanager
def damaged_header(place: Place) -> Iterator[Trouble]:
    checkpointer = place.with_checkpoint()
    place.change_bytes(checkpointer, b'"sizes"', b'"size5"')
    yield Trouble(checkpointer)


@contextmanager
def damaged_payload(place: Place) -> Iterator[Trouble]:
    checkpointer = place.with_checkpoint()
    place.change_bytes(checkpointer, b'{"n":1}', b'{"n":2}')
    yield Trouble(checkpointer)


@contextmanager
def truncated(place: Place) -> Iterator[Trouble]:
    checkpointer = place.with_checkpoint()
    place.change_bytes(checkpointer, b"", b"")
    yield Trouble(checkpointer)


@contextmanager
def newer_version(place: Place) -> Iterator[Trouble]:
    checkpointer = place.with_checkpoint()
    place.change_bytes(checkpointer, b'{"checkpoint":2', b'{"checkpoint":9')
    yield Trouble(checkpointer)


@contextmanager
def unserializable(place: Place) -> Iterator[Trouble]:
    yield Trouble(place.checkpointer(), {"tool": object()})


@contextmanager
def little_memory(place: Place) -> Iterator[Trouble]:
    if place.action == "load":
        trouble = Trouble(place.with_checkpoint("x" * LARGE, compression="gzip"))
    else:
        trouble = Trouble(place.checkpointer(), {"text": "x" * LARGE})
    before = resource.getrlimit(resource.RLIMIT_AS)
    gc.collect()  # what is freed later would be room for the state
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()

    def run(observe):
        resource.setrlimit(resource.RLIMIT_AS, (used + LARGE // 2, before[1]))
        try:
            return observe()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    yield trouble._replace(run=run)


@contextmanager
def ctrl_c(place: Place) -> Iterator[Trouble]:
    state = {"value": Interruption(signal.SIGINT, place.action)}
    if place.action != "load":
        yield Trouble(place.checkpointer(format="pickle"), state)
        return
    checkpointer = place.with_checkpoint(state, format="pickle")
    arm()
    yield Trouble(checkpointer)
    _armed.clear()


@contextmanager
def wrapped(place: Place) -> Iterator[Trouble]:
    checkpointer = place.with_checkpoint() if place.action == "save" else place.checkpointer()
    yield Trouble(Checkpointer(ProgramStore(checkpointer.store)))
