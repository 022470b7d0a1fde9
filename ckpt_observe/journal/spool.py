"""The spool: finished operations on disk, one per line, until every exporter has them.

A line is a CRC-32 in hex and a JSON array. Lines are appended to segments of 4 MiB; a segment is removed as a whole once every cursor has
passed it. A torn line (power failure, full disk) fails its checksum, is skipped and counted, and ends at the next newline.
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
_SEGMENT_NAME = re.compile(r"spool-(\d{8})\.jsonl")
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


class Cursor(NamedTuple):
    """A position in a spool. Everything before it was delivered."""

    segment: int = 0
    offset: int = 0


_START: Final = Cursor()


class Records(NamedTuple):
    """The result of a read: payloads, the position behind them, and the number of damaged lines that were skipped."""

    payloads: list[bytes]
    end: Cursor
    corrupt: int


def join_lines(lines: bytes) -> bytes:
    """Return the JSON lines of one operation as one record, which is a JSON array."""
    return b"[" + lines[:-1].replace(b"\n", b",") + b"]"


class Spool:
    """Appends to a spool. Any thread may call `append`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.RLock()  # re-entrant: a signal handler may save a checkpoint too
        self._appending = False
        existing = segments(directory)
        self._segment = (existing[-1] if existing else 0) + 1
        self._fd = -1
        self._size = 0
        self._unsynced: list[int] = []
        """Descriptors of complete segments that are not synced yet."""

    def append(self, records: Iterable[bytes]) -> None:
        """Write records. OSError (disk full, read-only or gone): treat none of them as written."""
        data = b"".join([b"%08x %b\n" % (zlib.crc32(record), record) for record in records])
        with self._lock:
            if self._appending:  # in a signal handler during an append: it must not close the segment that is being written
                raise OSError(errno.EAGAIN, "an append is in progress")
            self._appending = True
            try:
                self._append(data)
            finally:
                self._appending = False

    def _append(self, data: bytes) -> None:
        if os.write(self._open_segment(), data) != len(data):  # the disk filled up in the middle
            # Nothing may follow half a line, and nothing may be truncated that an exporter has read: continue in a new segment.
            self._finish_segment()
            raise OSError(errno.ENOSPC, "the disk is full")
        self._size += len(data)
        if self._size >= SEGMENT_SIZE:
            self._finish_segment()

    def _open_segment(self) -> int:
        path = segment_path(self._directory, self._segment)
        if self._fd >= 0 and not os.path.exists(path):  # another process has removed it: continue in a new one
            self._finish_segment()
            path = segment_path(self._directory, self._segment)
        if self._fd < 0:
            self._fd, self._size = os.open(path, _CREATE, 0o600), 0
        return self._fd

    def _finish_segment(self) -> None:
        self._unsynced.append(self._fd)
        self._fd, self._segment = -1, self._segment + 1

    def sync(self) -> None:
        """Make what was appended survive a power failure."""
        with self._lock:
            current = [os.dup(self._fd)] if self._fd >= 0 else []
            fds = [*self._take_unsynced(), *current]
        with ExitStack() as closing:  # without the lock: `append` does not wait for the disk
            for fd in fds:
                closing.callback(os.close, fd)
            for fd in fds:
                os.fsync(fd)

    def close(self) -> None:
        """Close all files. A later append starts a new segment."""
        with self._lock:
            if self._fd >= 0:
                self._finish_segment()
            for fd in self._take_unsynced():
                os.close(fd)

    def _take_unsynced(self) -> list[int]:
        fds, self._unsynced = self._unsynced, []
        return fds


def size(directory: str, start: Cursor = _START) -> int:
    """Return the bytes on disk from a position on."""
    sizes = {number: _file_size(segment_path(directory, number)) for number in segments(directory) if number >= start.segment}
    return sum(sizes.values()) - (start.offset if sizes.get(start.segment) else 0)


def _file_size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:  # delivered and removed since it was listed
        return 0


def segment_path(directory: str, number: int) -> str:
    """Return the path of a segment."""
    return os.path.join(directory, f"spool-{number:08}.jsonl")


def segments(directory: str) -> list[int]:
    """Return the numbers of the existing segments, oldest first."""
    return sorted(int(match[1]) for name in os.listdir(directory) if (match := _SEGMENT_NAME.fullmatch(name)))


def read(directory: str, cursor: Cursor, limit: int = 1 << 20) -> Records:
    """Read records from the cursor on, about `limit` bytes at most. No payloads and `end == cursor` mean that there is nothing new."""
    present = segments(directory)
    torn = 0
    for number in [each for each in present if each >= cursor.segment]:
        offset = cursor.offset if number == cursor.segment else 0
        try:
            data = _read_lines(segment_path(directory, number), offset, limit)
        except FileNotFoundError:
            if segments(directory) == present:
                raise
            return read(directory, cursor, limit)  # the segment was removed since it was listed, and new ones may exist by now
        complete = data.rfind(b"\n") + 1
        if complete:
            payloads, corrupt = _parse(data[:complete])
            return Records(payloads, Cursor(number, offset + complete), corrupt + torn)
        if number == present[-1]:
            return Records([], Cursor(number, offset), torn)
        torn += bool(data)  # half a line at the end of a segment to which nobody appends any more
    return Records([], cursor, 0)


def _read_lines(path: str, offset: int, limit: int) -> bytes:
    """Read about `limit` bytes, but at least one whole line if there is one."""
    with open(path, "rb") as file:
        file.seek(offset)
        data = file.read(limit)
        return data if b"\n" in data else data + file.readline()


def change_stamp(directory: str, cursor: Cursor) -> tuple[int, int] | None:
    """Return a value that changes when a record is added behind the cursor. Two system calls instead of a read, for frequent polling.

    None if the directory changed within the last second: it may change again with the same timestamp, because the clock is coarse.
    """
    try:
        changed = os.stat(directory).st_mtime_ns
        settled = time.time_ns() - changed > 1_000_000_000
        return (changed, _file_size(segment_path(directory, cursor.segment))) if settled else None
    except OSError:
        return None


def read_all(directory: str) -> Iterator[bytes]:
    """Yield every record in the spool."""
    cursor = Cursor()
    while True:
        payloads, end, _ = read(directory, cursor)
        if end == cursor:
            return
        yield from payloads
        cursor = end


def _parse(data: bytes) -> tuple[list[bytes], int]:
    """Return the payloads with a correct checksum, and the number of other lines."""
    payloads, corrupt = [], 0
    for line in data.split(b"\n"):
        if line:
            payload = line[9:]
            if line[:9] == b"%08x " % zlib.crc32(payload):
                payloads.append(payload)
            else:
                corrupt += 1
    return payloads, corrupt
