"""The spool: finished operations on disk, one per line, until every exporter has them.

A line is a CRC-32 in hex and a JSON array. Lines are appended to segments of 4 MiB; a segment is removed as a whole once every cursor has
passed it. A torn line (power failure, full disk) fails its checksum, is skipped and counted, and ends at the next newline. Reading takes
little memory and never waits, whatever the files contain or are.
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
from functools import partial
from typing import Final, NamedTuple

from ckpt_observe.errors import DamagedFileError
from ckpt_observe.journal.spool_index import SpoolIndex
from ckpt_observe.support import files
from ckpt_observe.support.host_exceptions import ignore_errors, raise_host_exception

SEGMENT_SIZE: Final = 4 << 20
MAX_LINE: Final = 1 << 20
"""Bytes of a line at most. A longer one is damaged: an operation has at most 17 pages of 4 KiB."""
_SEGMENT_NAME = re.compile(r"spool-([0-9]{8})\.jsonl")
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND


class Cursor(NamedTuple):
    """A position in a spool. The exporter that it belongs to has received everything before it."""

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
        self.segment = (existing[-1] if existing else 0) + 1
        """Number of the segment that is written to, or will be next."""
        self._fd = -1
        self._size = 0
        self._unsynced: list[int] = []
        """Descriptors of complete segments that are not synced yet."""
        self._has_new_names = False
        """Whether segments were created since the last sync."""
        self._index = SpoolIndex(partial(segment_path, directory))
        self._written: set[bytes] = set()
        """Lines of appends that failed in the middle: they are on disk, but are appended again."""

    def append(self, records: Iterable[bytes]) -> None:
        """Write records. If it raises OSError (disk full, read-only or gone), append all of them again later. None is written twice."""
        lines = [b"%08x %b\n" % (zlib.crc32(record), record) for record in records]
        with self._lock:
            if self._appending:  # in a signal handler during an append: it must not close the segment that is being written
                raise OSError(errno.EAGAIN, "an append is in progress")
            self._appending = True
            try:
                self._append(lines)
                self._written.difference_update(lines)
            finally:
                self._appending = False

    def _append(self, lines: list[bytes]) -> None:
        if self._written:
            lines = [line for line in lines if line not in self._written]
        if not lines:
            return
        data = b"".join(lines)
        written = os.write(self._open_segment(), data)
        if written != len(data):  # the disk filled up in the middle
            complete = data[: data.rfind(b"\n", 0, written) + 1]
            # Readers take whole lines, so nobody has read the half one. It is written again later, and must not count as a damaged record.
            with ignore_errors(OSError):
                os.ftruncate(self._fd, self._size + len(complete))
            lines = complete.splitlines(keepends=True)
            self._written.update(lines)
            self._index.add(self.segment, map(len, lines))
            self._finish_segment()
            raise OSError(errno.ENOSPC, "the disk is full")
        self._index.add(self.segment, map(len, lines))
        self._size += len(data)
        if self._size >= SEGMENT_SIZE:
            self._finish_segment()

    def _open_segment(self) -> int:
        path = segment_path(self._directory, self.segment)
        if self._fd >= 0 and not self._is_intact(path):  # removed or truncated, and cursors may be behind its end: continue in a new one
            self._finish_segment()
            path = segment_path(self._directory, self.segment)
        if self._fd < 0:
            try:
                self._fd, self._size, self._has_new_names = files.open_regular(path, _CREATE), 0, True
            except FileExistsError:  # not ours: the next append tries the next number
                self.segment += 1
                raise
        return self._fd

    def _is_intact(self, path: str) -> bool:
        try:
            return os.stat(path).st_size >= self._size
        except OSError as error:
            raise_host_exception(error)
            return False

    def _finish_segment(self) -> None:
        self._unsynced.append(self._fd)
        self._fd, self.segment = -1, self.segment + 1

    def sync(self) -> None:
        """Make what was appended survive a power failure."""
        with self._lock:
            current = [os.dup(self._fd)] if self._fd >= 0 else []
            fds = [*self._take_unsynced(), *current]
            has_new_names, self._has_new_names = self._has_new_names, False
        with ExitStack() as closing:  # without the lock: `append` does not wait for the disk
            for fd in fds:
                closing.callback(os.close, fd)
            for fd in fds:
                os.fsync(fd)
        if has_new_names:
            files.sync_directory(self._directory)

    def take_missing(self) -> list[Cursor]:
        """Return the positions of records that somebody truncated or removed since the last call, and of those that were delivered."""
        with self._lock:
            return [Cursor(*position) for position in self._index.take_missing()]

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
    return sum(sizes.values()) - min(start.offset, sizes.get(start.segment, 0))  # somebody may have truncated the file


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
            data, overlong = _read_lines(segment_path(directory, number), offset, limit)
        except DamagedFileError:
            torn += files.set_aside(segment_path(directory, number))
            continue
        except FileNotFoundError:
            if segments(directory) == present:
                raise
            return read(directory, cursor, limit)  # the segment was removed since it was listed, and new ones may exist by now
        if overlong:
            return Records([], Cursor(number, offset + overlong), torn + 1)
        complete = data.rfind(b"\n") + 1
        if complete:
            payloads, corrupt = _parse(data[:complete])
            return Records(payloads, Cursor(number, offset + complete), corrupt + torn)
        if number == present[-1]:
            return Records([], Cursor(number, offset), torn)
        torn += bool(data)  # half a line at the end of a segment to which nobody appends any more
    return Records([], cursor, torn)


def _read_lines(path: str, offset: int, limit: int) -> tuple[bytes, int]:
    """Read about `limit` bytes, but at least one whole line if there is one. If the line is too long, return only its length."""
    file = files.open_regular(path)
    try:
        data = os.pread(file, limit, offset)
        if len(data) == limit and b"\n" not in data:
            more = os.pread(file, MAX_LINE, offset + limit)
            if len(more) == MAX_LINE and b"\n" not in more:
                return b"", _find_line_end(file, offset + limit + MAX_LINE) - offset
            data += more[: more.find(b"\n") + 1 or None]
        return data, 0
    finally:
        os.close(file)


def _find_line_end(file: int, start: int) -> int:
    """Return the position behind the next newline, or the end of the file. Holes of a sparse file are not read."""
    position = start
    while data := os.pread(file, MAX_LINE, position):
        if newline := data.find(b"\n") + 1:
            return position + newline
        position += len(data)
        if hasattr(os, "SEEK_DATA"):
            try:
                position = os.lseek(file, position, os.SEEK_DATA)
            except OSError as error:  # only a hole is left
                raise_host_exception(error)
                return max(position, os.fstat(file).st_size)
    return position


def is_boundary(directory: str, cursor: Cursor) -> bool:
    """Return whether a stored cursor can be right: at the start or behind a line of a segment, or just behind segments that are gone."""
    present = segments(directory)
    if cursor.segment not in present or not cursor.offset:
        return not present or cursor.segment <= present[-1] + 1
    try:
        file = files.open_regular(segment_path(directory, cursor.segment))
    except OSError as error:
        raise_host_exception(error)
        return True
    try:
        return cursor.offset >= os.fstat(file).st_size or os.pread(file, 1, cursor.offset - 1) == b"\n"
    finally:
        os.close(file)


def change_stamp(directory: str, cursor: Cursor) -> tuple[int, int] | None:
    """Return a value that changes when a record is added behind the cursor. Two system calls instead of a read, for frequent polling.

    None if the directory cannot be read, or changed within the last second: it may change again with the same timestamp, because the clock
    is coarse.
    """
    try:
        changed = os.stat(directory).st_mtime_ns
        settled = time.time_ns() - changed > 1_000_000_000
        return (changed, _file_size(segment_path(directory, cursor.segment))) if settled else None
    except OSError as error:
        raise_host_exception(error)
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
