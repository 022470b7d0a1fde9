"""What a dead process left: its ended operations go to its spool, and those in flight end as `interrupted`, each exactly once.

Whoever recovers holds both locks of the journal. Every step may be cut short and done again: pages are removed only after what they held is
in the spool and synced, and what is in the spool already is not written twice.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec

from ckpt_observe.errors import JournalError
from ckpt_observe.journal import spool
from ckpt_observe.journal.journal import ABOUT, DELIVERY_LOCK, INTERRUPTED, OPEN, OWNER_LOCK, VERSION, About, boot_id
from ckpt_observe.journal.page_file import page_files, read_pages
from ckpt_observe.journal.remains import Remains, parse_lines
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from ckpt_observe.support.locks import FileLock

UNFINISHED_FOR: Final = 60.0
"""Seconds after which a journal that is not finished never will be; it takes a millisecond."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Claim:
    """A journal that we alone delivery. Its owner is dead, or it is one whose owner leaves the delivery to us."""

    def __init__(self, directory: str, about: About, delivery: FileLock, owner: FileLock | None) -> None:
        self.directory, self.about = directory, about
        self._delivery, self._owner = delivery, owner

    def dead(self) -> bool:
        """Whether its owner is gone: then what it left is ours to recover, and the journal ours to remove."""
        if self._owner is None:
            self._owner = FileLock.try_acquire(os.path.join(self.directory, OWNER_LOCK), create=False)
        return self._owner is not None

    def release(self) -> None:
        for lock in (self._delivery, self._owner):
            if lock:
                lock.release()


def claim(directory: str) -> Claim | None:
    """The journal if its owner is dead and nobody else delivers it. JournalError: it is damaged, or of a newer version; leave it alone."""
    owner = _take(directory, OWNER_LOCK)
    return _claimed(directory, _take(directory, DELIVERY_LOCK), owner) if owner else None


def attend(directory: str) -> Claim | None:
    """The journal if nobody else delivers it, its owner alive or dead. Only for one whose owner leaves the delivery to us."""
    return _claimed(directory, _take(directory, DELIVERY_LOCK), None)


def _take(directory: str, name: str) -> FileLock | None:
    try:
        return FileLock.try_acquire(os.path.join(directory, name), create=False)
    except FileNotFoundError:  # somebody else finished and removed it
        return None


def _claimed(directory: str, delivery: FileLock | None, owner: FileLock | None) -> Claim | None:
    try:
        if delivery and os.path.exists(os.path.join(directory, ABOUT)):
            claimed = Claim(directory, read_about(directory), delivery, owner)
            delivery = owner = None
            return claimed
        return None
    finally:
        for lock in (delivery, owner):
            if lock:
                lock.release()


def sweep(unfinished: Iterable[str]) -> None:
    """Remove what processes left that died while they made their journal: nothing was recorded there yet."""
    for directory in unfinished:
        with suppress(OSError):
            if time.time() - os.stat(directory).st_mtime > UNFINISHED_FOR:
                shutil.rmtree(directory)


def read_about(directory: str) -> About:
    """Who the owner is. JournalError: damaged, or written by a newer version."""
    try:
        with open(os.path.join(directory, ABOUT), "rb") as file:
            data = file.read()
        version = msgspec.json.decode(data, type=dict[str, Any]).get("version")
        if not isinstance(version, int) or version > VERSION:
            raise JournalError(f"{directory}: written by a newer version (journal {version}, we read {VERSION}); upgrade ckpt-observe")
        return msgspec.json.decode(data, type=About)
    except (OSError, msgspec.MsgspecError) as error:
        raise JournalError(f"{directory}: about.json cannot be read ({error}); if nobody needs it, remove the directory") from error


def recover(claimed: Claim, noted: Callable[[bytes], bytes] = lambda record: record) -> int:
    """Finish what the dead owner began; how many operations were interrupted. `noted` is what the delivery adds to a record."""
    directory, about = claimed.directory, claimed.about
    files = page_files(about.pages)
    copy = os.path.join(directory, OPEN)
    if about.boot == boot_id() and files:
        heartbeat, left = _left_behind(files)
    else:  # the machine died too, or somebody emptied the shared memory: the last copy on disk
        heartbeat, left = _left_behind([copy] if os.path.exists(copy) else [])
    known = {begun[1] for payload in spool.read_all(directory) if (begun := beginning(_lines_of(payload)))} if left else set()
    ended = [each.ended(heartbeat, about.pid) for name, each in left.items() if name not in known and beginning(each.lines)]
    interrupted: int = sum(lines[-1][3].get(names.OUTCOME) == "interrupted" for lines in ended if lines[-1][3])
    if interrupted:  # said first: who dies in between must not leave some that nobody spares
        with open(os.path.join(directory, INTERRUPTED), "wb"):
            pass
    if ended:
        writer = spool.Spool(directory)
        try:
            writer.append([noted(_encode(lines)) for lines in ended])
            writer.sync()
        finally:  # a full disk is tried again and again
            writer.close()
    for path in (copy, *files):  # the copy first: without the pages it would be believed, and it is older than what was delivered since
        if os.path.exists(path):
            os.unlink(path)
    return interrupted


def _lines_of(payload: bytes) -> list[Any]:
    """The lines of a record in the spool."""
    try:
        lines = _decode(payload)
    except msgspec.DecodeError:
        return []
    return [line for line in lines if isinstance(line, list) and len(line) > 3] if isinstance(lines, list) else []


def beginning(lines: list[Any]) -> list[Any] | None:
    """The line with which the operation began."""
    return next((line for line in lines if line[0] == events.BEGIN), None)


def _left_behind(files: list[str]) -> tuple[int, dict[str, Remains]]:
    """What is left of each operation, by its id, and the owner's last sign of life."""
    heartbeat, left = 0, dict[str, Remains]()
    for path in files:
        beat, pages = read_pages(path)
        heartbeat = max(heartbeat, beat)
        for page in pages:
            lines = parse_lines(page.lines)
            for line in lines:
                left.setdefault(line[1], Remains()).lines.append(line)
            begun = beginning(lines)
            if begun:
                left[begun[1]].marks = page.marks
    return heartbeat, left
