"""A journal: everything one process records. Made by its owner at the first operation, removed when all is delivered.

In `<state>/journals/<name>/`: `owner.lock`, held by the owner until it dies; `drain.lock`, held by whoever delivers it, one at a time: the
owner itself, its companion or a daemon, and after its death whoever comes first; `about.json`, who the owner is, who delivers for it and
which exporters it wants; the spool and the cursors of the exporters; `open.pages`, a copy of what is in flight; `counts.json`, the owner's
counters where another process delivers; `interrupted` if its death cut something short. The pages themselves lie in shared memory.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from ckpt_observe.errors import JournalError
from ckpt_observe.journal.page_file import heartbeat_page
from ckpt_observe.journal.pages import AnyPage
from ckpt_observe.journal.place import page_directory, private_directory
from ckpt_observe.journal.pool import Pool
from ckpt_observe.journal.spool import Spool
from ckpt_observe.support import files
from ckpt_observe.support.locks import FileLock, is_locked

VERSION: Final = 1
JOURNALS: Final = "journals"
ABOUT: Final = "about.json"
OPEN: Final = "open.pages"
OWNER_LOCK: Final = "owner.lock"
DELIVERY_LOCK: Final = "drain.lock"
INTERRUPTED: Final = "interrupted"
"""Empty, and there when the last segment of the spool tells of operations that the owner's death cut short."""
UNFINISHED: Final = files.ASIDE
"""Ending of a journal that is being made, or removed."""


FORMER_MODES: Final = {"thread": "in-process", "agent": "daemon"}
"""Delivery modes as earlier versions wrote them."""


class About(msgspec.Struct, frozen=True, rename={"exporters": "sinks", "delivery": "drain"}):
    """Describes the owner of a journal. `about.json` keeps the first field names, so that journals of earlier versions stay readable."""

    version: int
    pid: int
    boot: str
    started: int
    pages: str
    """Path of the page files, without number and ending."""
    exporters: tuple[str, ...]
    resource: dict[str, Any]
    delivery: str = "in-process"
    """Who delivers it while its owner lives: the owner itself (`in-process`), a `companion` or a `daemon` (with its own exporters)."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "delivery", FORMER_MODES.get(self.delivery, self.delivery))


class Journal:
    """The owner's side."""

    def __init__(
        self, state: Path, pages: Path | None, exporters: Sequence[str], resource: dict[str, Any], delivery: str = "in-process"
    ) -> None:
        root = private_directory(private_directory(state) / JOURNALS)
        now = time.time_ns()
        name = f"{os.getpid()}-{now:x}"
        page_root, mapped = page_directory(state, pages)
        self.about = About(VERSION, os.getpid(), boot_id(), now, str(page_root / name), tuple(exporters), resource, delivery)
        self.directory = str(root / name)
        self._owner, self._delivery = _made(self.directory, self.about)
        if delivery != "in-process":
            self._delivery.release()
        self.spool = Spool(self.directory)
        self._open_saved: list[bytes] = []
        try:
            self.pool = Pool(self.about.pages, self.spool.append, mapped=mapped)
        except OSError as error:
            self.remove()
            raise JournalError(f"{self.about.pages}: no room for pages ({error.strerror}); set CKPT_OBSERVE_PAGES_DIR") from error

    def take(self) -> AnyPage | None:
        return self.pool.take()

    def deliver_here(self) -> bool:
        """Whether the owner delivers it from now on; not if somebody else does."""
        lock = FileLock.try_acquire(os.path.join(self.directory, DELIVERY_LOCK), create=False)
        self._delivery = lock or self._delivery
        return lock is not None

    def has_deliverer(self) -> bool:
        """Whether somebody delivers it, we ourselves included. OSError: the directory is gone."""
        return is_locked(os.path.join(self.directory, DELIVERY_LOCK))

    def sync(self) -> None:
        """What was recorded survives the machine, too: what is in the spool, and a copy of the pages of what is not."""
        images = self.pool.uncollected()  # first: what goes from a page to the spool meanwhile is in one of the two, or in both
        self.spool.sync()
        self._save_open(images)

    def _save_open(self, images: list[bytes]) -> None:
        if images == self._open_saved:
            return
        files.replace_file(os.path.join(self.directory, OPEN), heartbeat_page(time.time_ns()), *images, sync=True)
        self._open_saved = images

    def forget(self) -> None:
        """In a forked child: this is the parent's journal."""
        self.pool.abandon()  # the locks forget themselves

    def release(self) -> None:
        """Leave it to whoever comes next: something is not delivered.

        While an operation still runs we keep the locks, for its page is not a dead one's: whoever comes after our death finds it.
        """
        self.spool.close()
        if self.pool.retire():
            if self.pool.waiting():  # the disk has no room for them
                self.pool.abandon()
            else:  # half a mebibyte of shared memory or more, with nothing in it
                self._remove_pages()
            self._release_locks()

    def remove(self) -> None:
        """All is delivered."""
        if hasattr(self, "pool"):
            self._remove_pages()
        self.spool.close()
        erase(self.directory)
        self._release_locks()

    def _remove_pages(self) -> None:
        with suppress(OSError):  # first: without the pages it would be believed
            os.unlink(os.path.join(self.directory, OPEN))
        self.pool.remove()

    def _release_locks(self) -> None:
        self._delivery.release()
        self._owner.release()


def erase(directory: str) -> None:
    """Remove a journal. It is renamed first; if we die in between, the rest is removed like a journal that was never finished."""
    files.remove_tree(directory)


def _made(directory: str, about: About) -> tuple[FileLock, FileLock]:
    """The journal's directory with its locks held. It gets its name last, so nobody sees a journal that is not locked yet."""
    temporary = directory + UNFINISHED
    os.mkdir(temporary, 0o700)
    locks: list[FileLock] = []
    try:
        for name in (OWNER_LOCK, DELIVERY_LOCK):
            lock = FileLock.try_acquire(os.path.join(temporary, name))
            if lock is None:
                raise JournalError(f"{directory}: cannot be locked; set CKPT_OBSERVE_DIR to a file system with locks")
            locks.append(lock)
        files.write_file(os.path.join(temporary, ABOUT), msgspec.json.encode(about), sync=True)
        files.move(temporary, directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for lock in locks:
            lock.release()
        raise
    return locks[0], locks[1]


def boot_id() -> str:
    """Changes with every start of the machine: pages of another boot are gone, or not to be trusted."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
