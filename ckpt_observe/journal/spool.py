"""The spool: finished operations on disk, one a line, until every exporter has them.

A line is a crc32 in hex and the JSON. Segments of 4 MiB are appended to and, once every cursor has passed them, removed whole. A torn
line (power cut, full disk) fails its checksum, is skipped and counted; the next one stands after the next newline.
"""

from __future__ import annotations

import errno
import os
import re
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

SEGMENT_SIZE: Final = 4 << 20
_NAME = re.compile(r"spool-(\d{8})\.jsonl")
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class Cursor(NamedTuple):
    """A place in a spool: everything before it was delivered."""

    segment: int = 0
    offset: int = 0


_BEGINNING: Final = Cursor()


class Records(NamedTuple):
    """What a read gave: payloads, where the next read begins, and how many lines were not what was written."""

    payloads: list[bytes]
    after: Cursor
    corrupt: int


def record(lines: bytes) -> bytes:
    """The JSON lines of one operation as one record: a JSON array of them."""
    return b"[" + lines[:-1].replace(b"\n", b",") + b"]"


class Spool:
    """Appends to a spool. `append` may be called from any thread."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.RLock()  # re-entrant: a signal handler may save a checkpoint too
        self._appending = False
        existing = segments(directory)
        self._segment = (existing[-1] if existing else 0) + 1
        self._fd = -1
        self._size = 0
        self._full: list[int] = []
        """Segments that nobody appends to any more, and that are not synced yet."""

    def append(self, records: Iterable[bytes]) -> None:
        """Write records. OSError (full, read-only, gone) means that none of them counts."""
        data = b"".join([b"%08x %b\n" % (zlib.crc32(each), each) for each in records])
        with self._lock:
            if self._appending:  # a signal handler in the middle of this: the segment that it might close is the one that we write to
                raise OSError(errno.EAGAIN, "an append is under way")
            self._appending = True
            try:
                self._append(data)
            finally:
                self._appending = False

    def _append(self, data: bytes) -> None:
        if os.write(self._open(), data) != len(data):  # a disk that filled up in the middle
            self._close()  # nothing may follow half a line, and nothing be cut off that an exporter has read: go on in a new segment
            raise OSError(errno.ENOSPC, "the disk is full")
        self._size += len(data)
        if self._size >= SEGMENT_SIZE:
            self._close()

    def _open(self) -> int:
        name = path(self._directory, self._segment)
        if self._fd >= 0 and not os.path.exists(name):  # removed under us: go on in a new one
            self._close()
            name = path(self._directory, self._segment)
        if self._fd < 0:
            self._fd, self._size = os.open(name, _CREATE, 0o600), 0
        return self._fd

    def _close(self) -> None:
        self._full.append(self._fd)
        self._fd, self._segment = -1, self._segment + 1

    def sync(self) -> None:
        """What was appended survives the death of the machine."""
        with self._lock:
            current = [os.dup(self._fd)] if self._fd >= 0 else []
            fds = [*self._taken(), *current]
        with ExitStack() as closing:  # without the lock: who appends does not wait for the disk
            for fd in fds:
                closing.callback(os.close, fd)
            for fd in fds:
                os.fsync(fd)

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                self._close()
            for fd in self._taken():
                os.close(fd)

    def _taken(self) -> list[int]:
        full, self._full = self._full, []
        return full


def size(directory: str, after: Cursor = _BEGINNING) -> int:
    """Bytes on disk, from a cursor on."""
    sizes = {number: _size_of(path(directory, number)) for number in segments(directory) if number >= after.segment}
    return sum(sizes.values()) - (after.offset if sizes.get(after.segment) else 0)


def _size_of(segment: str) -> int:
    try:
        return os.path.getsize(segment)
    except FileNotFoundError:  # delivered and removed since it was listed
        return 0


def path(directory: str, number: int) -> str:
    return os.path.join(directory, f"spool-{number:08}.jsonl")


def segments(directory: str) -> list[int]:
    """Numbers of the segments there, oldest first."""
    return sorted(int(match[1]) for name in os.listdir(directory) if (match := _NAME.fullmatch(name)))


def read(directory: str, cursor: Cursor, limit: int = 1 << 20) -> Records:
    """Records from the cursor on, at most about `limit` bytes. No payloads and the same cursor: there is nothing new."""
    present = segments(directory)
    torn = 0
    for number in [each for each in present if each >= cursor.segment]:
        offset = cursor.offset if number == cursor.segment else 0
        try:
            data = _read_from(path(directory, number), offset, limit)
        except FileNotFoundError:
            if segments(directory) == present:
                raise
            return read(directory, cursor, limit)  # delivered or dropped, and removed since it was listed: there may be new ones by now
        whole = data.rfind(b"\n") + 1
        if whole:
            payloads, corrupt = _parse(data[:whole])
            return Records(payloads, Cursor(number, offset + whole), corrupt + torn)
        if number == present[-1]:
            return Records([], Cursor(number, offset), torn)
        torn += bool(data)  # half a line, and nobody writes here any more
    return Records([], cursor, 0)


def _read_from(segment: str, offset: int, limit: int) -> bytes:
    """About so many bytes, and one line at least if there is one."""
    with open(segment, "rb") as file:
        file.seek(offset)
        data = file.read(limit)
        return data if b"\n" in data else data + file.readline()


def stamp(directory: str, cursor: Cursor) -> tuple[int, int] | None:
    """What changes when a record is added behind the cursor: two system calls instead of a read, for who looks often at many spools.

    None: not to be relied on. A directory that changed within the last second may change again without looking so: its clock is coarse.
    """
    try:
        changed = os.stat(directory).st_mtime_ns
        settled = time.time_ns() - changed > 1_000_000_000
        return (changed, _size_of(path(directory, cursor.segment))) if settled else None
    except OSError:
        return None


def read_all(directory: str) -> Iterator[bytes]:
    """Every record that is still there."""
    cursor = Cursor()
    while True:
        payloads, after, _ = read(directory, cursor)
        if after == cursor:
            return
        yield from payloads
        cursor = after


def _parse(data: bytes) -> tuple[list[bytes], int]:
    payloads, corrupt = [], 0
    for line in data.split(b"\n"):
        if line:
            payload = line[9:]
            if line[:9] == b"%08x " % zlib.crc32(payload):
                payloads.append(payload)
            else:
                corrupt += 1
    return payloads, corrupt
