"""The directory of a journal, `<state>/journals/<name>/`: its files, and how it is created.

| file | content |
|---|---|
| `owner.lock` | held by the owner until it dies |
| `drain.lock` | held by the one process that delivers: the owner, its companion or a daemon; after the owner's death any process |
| `about.json` | the owner, who delivers for it, and to which exporters: `About` |
| `spool-*.jsonl`, cursors | finished operations, and how far each exporter has read |
| `set-aside.json` | spans that a server keeps failing on, by exporter |
| `sending.json` | what is being sent to exporters whose server stores every copy of a span |
| `open.pages` | a copy of the pages of running operations, for the case that the machine dies |
| `counts.json`, `counts-taken.json` | the owner's counters, if another process delivers, and how much of them it has already counted |
| `interrupted` | marks a journal whose owner died during an operation |

The page files themselves are in shared memory, or in `<state>/pages/` if it is full or does not outlive a container.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from ckpt_observe.errors import DamagedFileError, DamagedJournalError, JournalError
from ckpt_observe.journal.locations import PAGES
from ckpt_observe.journal.page_reader import page_files
from ckpt_observe.semconv import metrics
from ckpt_observe.support import files
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception
from ckpt_observe.support.locks import FileLock

VERSION: Final = 1
DAMAGED_JOURNALS: Final = "damaged"
"""Directory beside `journals` for those of dead processes whose `about.json` is damaged. Nothing reads or removes them."""
JOURNALS: Final = "journals"
ABOUT: Final = "about.json"
OPEN_PAGES: Final = "open.pages"
OWNER_LOCK: Final = "owner.lock"
DELIVERY_LOCK: Final = "drain.lock"
INTERRUPTED: Final = "interrupted"
"""An empty file. It exists if the last segment of the spool reports operations that the owner's death interrupted."""
UNFINISHED: Final = files.ASIDE
"""Suffix of a journal that is being created or removed."""
_COUNTS: Final = "counts.json"
_TAKEN_COUNTS: Final = "counts-taken.json"

STORED_MODES: Final = {"in-process": "thread", "daemon": "agent"}
"""Delivery modes that `about.json` stores under their former names, for earlier versions that share the state directory. They would take
the journal of a `daemon` for one that needs no exporter, and remove it."""
_MODES: Final = {stored: mode for mode, stored in STORED_MODES.items()}

Counts: TypeAlias = dict[tuple[str, tuple[str, ...]], float]
"""Counters by metric and label values."""
_StoredCounts: TypeAlias = list[tuple[str, tuple[str, ...], Annotated[float, msgspec.Meta(ge=0, lt=1e18)]]]
_LABEL_COUNTS: Final = {spec.name: len(spec.labels) for spec in metrics.METRICS}


class About(msgspec.Struct, frozen=True, rename={"exporters": "sinks", "delivery": "drain"}):
    """Describes the owner of a journal. `about.json` uses former names of fields and modes: earlier versions read and write it too."""

    version: int
    pid: int
    boot: str
    started: int
    pages: str
    """Path of the page files, without number and suffix. If there was no room, there are more in the state directory."""
    exporters: tuple[str, ...]
    resource: dict[str, Any]
    delivery: str = "in-process"
    """Who delivers the journal while its owner lives: the owner (`in-process`), a `companion`, or a `daemon` with its own exporters."""
    missed: int = 0
    """Operations that the owner did not record, because it could not create the journal at once."""
    attributes: dict[str, Any] = {}
    """Attributes of every task and operation of the owner."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "delivery", _MODES.get(self.delivery, self.delivery))

    def encode(self) -> bytes:
        """Return the content of `about.json`."""
        fields = {**msgspec.to_builtins(self), "drain": STORED_MODES.get(self.delivery, self.delivery)}
        for name in ("missed", "attributes"):
            if not fields[name]:  # the usual file is that of the first version
                del fields[name]
        return msgspec.json.encode(fields)


class _Version(msgspec.Struct):
    version: int


def create_journal(directory: str, about: About) -> tuple[FileLock, FileLock]:
    """Create the directory and return its locks, held: owner and delivery. It gets its final name last, so nobody sees it unlocked."""
    temporary = directory + UNFINISHED
    os.mkdir(temporary, 0o700)
    locks: list[FileLock] = []
    try:
        for name in (OWNER_LOCK, DELIVERY_LOCK):
            lock = FileLock.try_acquire(os.path.join(temporary, name))
            if lock is None:
                raise JournalError(f"{directory}: cannot be locked; set CKPT_OBSERVE_DIR to a directory on a file system with locks")
            locks.append(lock)
        files.write_file(os.path.join(temporary, ABOUT), about.encode(), sync=True)
        files.move(temporary, directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for lock in locks:
            lock.release()
        raise
    return locks[0], locks[1]


def read_about(directory: str) -> About:
    """Return the description of the owner.

    Raise DamagedJournalError if it is damaged, JournalError if it is gone or of a newer version, OSError if it cannot be read now.
    """
    path = os.path.join(directory, ABOUT)
    try:
        version = files.read_json(path, _Version).version
        if version > VERSION:
            raise JournalError(
                f"{directory}: written by a newer version (journal format {version}, this one reads up to {VERSION}); upgrade ckpt-observe"
            )
        about: About = files.read_json(path, About)
        if not os.path.isabs(about.pages) or b"\0" in os.fsencode(about.pages):
            raise DamagedFileError(errno.EINVAL, "the path of its pages is not a path", path)
    except (DamagedFileError, UnicodeEncodeError) as error:
        message = f"{directory}: {ABOUT} is damaged ({error}), so its exporters are unknown; its records are kept"
        raise DamagedJournalError(message) from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise JournalError(f"{directory}: has no {ABOUT}") from error
    else:
        return about


def list_page_files(directory: str, about: About) -> list[str]:
    """Return the page files of a journal: those where it began, then those that had to be in the state directory."""
    journals, name = os.path.split(directory)
    other = os.path.join(os.path.dirname(journals), PAGES, name)
    return [path for prefix in dict.fromkeys((about.pages, other)) for path in page_files(prefix)]


def boot_id() -> str:
    """Return the id of this boot of the machine, or an empty string if unknown. Pages of another boot are gone or cannot be trusted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().decode().strip()  # UTF-8: other codecs may have to be imported
    except OSError as error:
        raise_host_exception(error)
        return ""


def save_counts(directory: str, counts: Mapping[tuple[str, tuple[str, ...]], float]) -> None:
    """Publish the owner's counters to the process that delivers. Writes nothing while all are zero. Raise OSError if the disk is full."""
    if any(counts.values()):
        _write_counts(os.path.join(directory, _COUNTS), counts)


def take_counts(directory: str) -> Counts:
    """Return by how much the owner's counters grew since the last call. For the process that delivers.

    They are marked as taken before they are used: a crash in between loses an increase, but none is ever counted twice. For the same
    reason all of them count as taken if the file that says so is damaged.
    """
    with ignore_errors(OSError):
        counts = _read_counts(os.path.join(directory, _COUNTS)) or {}
        taken_counts = _read_counts(os.path.join(directory, _TAKEN_COUNTS))
        if taken_counts is None:
            _write_counts(os.path.join(directory, _TAKEN_COUNTS), counts)
            return {}
        increases = {key: value - taken_counts.get(key, 0.0) for key, value in counts.items() if value > taken_counts.get(key, 0.0)}
        if increases:
            _write_counts(os.path.join(directory, _TAKEN_COUNTS), counts)
        return increases
    return {}


def _read_counts(path: str) -> Counts | None:
    """Return the counters of a file. If it is damaged, move it aside and return None."""
    try:
        stored: _StoredCounts = files.read_json(path, _StoredCounts)
    except FileNotFoundError:
        return {}
    except DamagedFileError:
        files.set_aside(path)
        return None
    return {(metric, labels): value for metric, labels, value in stored if _LABEL_COUNTS.get(metric) == len(labels)}


def _write_counts(path: str, counts: Mapping[tuple[str, tuple[str, ...]], float]) -> None:
    files.replace_file(path, msgspec.json.encode([(metric, labels, value) for (metric, labels), value in counts.items()]), sync=False)
