"""Reads page files of other processes, dead or alive.

They are untrusted input: a page may be damaged, and may change while it is read.
"""

from __future__ import annotations

import os
import struct
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from ckpt_observe.journal.pages import ENDED_FLAG, HEADER_SIZE, MARK_COUNT, MEMORY_WORD, PAGE_SIZE, WORD
from ckpt_observe.semconv import events
from ckpt_observe.support import files

_decode = msgspec.json.Decoder().decode
MAX_SIZE: Final = 64 << 20
"""Bytes that are read of a page file, or of the copy of all pages of a process, which has up to 32 MiB."""
_MAX_MEMORY: Final = 1 << 50
"""Bytes of memory that no machine has: a page file may be damaged, or of an earlier version with a note in this place."""
_PAGES_AT_ONCE: Final = 64
_MARK_WORDS = struct.Struct(f"@{MARK_COUNT}Q")

_Time = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Id = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
_TraceId = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Parent = _Number | _Id
_Attributes = dict[str, Any] | None

_Sizes = tuple[int | None, int | None]
_Phase = tuple[str, _Number, _Parent, _Time, _Time, _Attributes | _Sizes]

LINE_TYPES: Final[dict[str, Any]] = {
    events.BEGIN: tuple[str, _Id, _Time, str, str, _TraceId, str, _Attributes, _Attributes],
    events.PHASE: tuple[str, _Id, _Time, _Number, _Parent, str],
    events.DONE: tuple[str, _Id, _Time, _Phase],
    events.LINK: tuple[str, _Id, _Time, str, str, _Attributes],
    events.EVENT: tuple[str, _Id, _Time, str, _Attributes],
    events.END: tuple[str, _Id, _Time, _Attributes, list[_Phase], int],
}
"""The type of each kind of line. Lines that do not conform are dropped."""


class Heartbeat(NamedTuple):
    """The last sign of life of a process."""

    time: int = 0
    """Unix nanoseconds."""
    peak_memory: int = 0
    """Its peak resident memory until then, in bytes; 0 if it is not known."""


class PageContent(NamedTuple):
    """Lines and marks of a page in use."""

    lines: bytes
    marks: tuple[int, ...]
    is_ended: bool


def page_files(prefix: str) -> list[str]:
    """Return the page files of one journal, in order. `prefix` is their path without number and suffix.

    Not with `glob`, which would compile a regular expression for each journal.
    """
    directory, name = os.path.split(prefix)
    try:
        entries = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(os.path.join(directory, entry) for entry in entries if entry.startswith(name + "-") and entry.endswith(".pages"))


def read_pages(path: str) -> tuple[Heartbeat, list[PageContent]]:
    """Return the last heartbeat of a page file, and the content of each page in use."""
    data = _read(path)
    heartbeat = _read_heartbeat(data) if len(data) >= PAGE_SIZE else Heartbeat()
    pages = []
    for start in _page_starts(data):
        word = WORD.unpack_from(data, start)[0]
        used = word & ~ENDED_FLAG
        if HEADER_SIZE < used <= PAGE_SIZE:
            marks = _MARK_WORDS.unpack_from(data, start + WORD.size)
            pages.append(PageContent(data[start + HEADER_SIZE : start + used], marks, bool(word & ENDED_FLAG)))
    return heartbeat, pages


def _read_heartbeat(data: bytes) -> Heartbeat:
    memory = WORD.unpack_from(data, MEMORY_WORD * WORD.size)[0]
    return Heartbeat(WORD.unpack_from(data)[0], memory if memory < _MAX_MEMORY else 0)


def read_running(path: str) -> list[bytes]:
    """Return the lines of each page whose operation is running.

    Most pages are free. Each scrape of the metrics reads them all, so a part of the file at a time is read into the same memory: new memory
    for all of it would take ten times as long.
    """
    file = files.open_regular(path)
    try:
        size = min(MAX_SIZE, os.fstat(file).st_size)
        part = bytearray(min(_PAGES_AT_ONCE * PAGE_SIZE, max(size // PAGE_SIZE - 1, 0) * PAGE_SIZE))
        words = memoryview(part).cast("@Q")[:: PAGE_SIZE // WORD.size]  # the first word of each page
        pages = []
        for start in range(PAGE_SIZE, size - PAGE_SIZE + 1, len(part) or PAGE_SIZE):
            complete_pages = os.preadv(file, [part], start) // PAGE_SIZE
            for index, used in enumerate(words[:complete_pages].tolist()):
                if HEADER_SIZE < used <= PAGE_SIZE:  # ENDED_FLAG makes it larger
                    pages.append(bytes(part[index * PAGE_SIZE + HEADER_SIZE : index * PAGE_SIZE + used]))
        return pages
    finally:
        os.close(file)


def _read(path: str) -> bytes:
    return files.read_file(path, MAX_SIZE)


def _page_starts(data: bytes) -> range:
    return range(PAGE_SIZE, len(data) - PAGE_SIZE + 1, PAGE_SIZE)


def parse_lines(data: bytes) -> list[list[Any]]:
    """Return the well-formed lines among these."""
    lines = []
    for line in data.split(b"\n"):
        try:
            values = _decode(line)
            msgspec.convert(values, LINE_TYPES[values[0]])
        except (msgspec.MsgspecError, LookupError, TypeError, ValueError, RecursionError):
            continue
        lines.append(values)
    return lines


def begin_line(lines: list[Any]) -> list[Any] | None:
    """Return the `begin` line of an operation, or None if it is not among these."""
    return next((line for line in lines if line[0] == events.BEGIN), None)
