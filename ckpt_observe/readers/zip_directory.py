"""The directory of a zip file, and its small members, within limits.

Not `zipfile`, which reads a directory of any size into memory at once.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final, NamedTuple

from ckpt_observe.errors import CompatibilityError, CompressionError
from ckpt_observe.readers.source import SourceFile, exceeds, malformed, truncated
from ckpt_observe.support.advice import add_advice

MAGIC: Final = b"PK\x03\x04"
_END: Final = struct.Struct("<4s4H2LH")
_END_64: Final = struct.Struct("<4sQ2H2L4Q")
_LOCATOR_64: Final = struct.Struct("<4sLQL")
_ENTRY: Final = struct.Struct("<4s6H3L5H2L")
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_MAX_COMMENT: Final = 0xFFFF
_STORED, _DEFLATED = 0, 8


class Member(NamedTuple):
    """A file in a zip file, as the directory describes it."""

    name: str
    size: int
    """Bytes after decompression."""
    stored_size: int
    crc: int
    method: int
    offset: int
    """Where its local header starts."""

    @property
    def is_stored(self) -> bool:
        """Whether it is not compressed, so that a part of it can be read."""
        return self.method == _STORED

    @property
    def digest(self) -> str:
        """The checksum of the content; empty if the writer left it out (torch can)."""
        return f"crc32:{self.crc:08x}" if self.crc or not self.size else ""


def read_directory(source: SourceFile) -> dict[str, Member]:
    """Return the members by name. The first of two with the same name counts: readers differ in which one they use."""
    start, size, count = _find_directory(source)
    if count > source.limits.entries:
        raise exceeds(f"the number of files in {source.path}", "entries", source.limits.entries)
    data = memoryview(source.read(start, size))
    members: dict[str, Member] = {}
    position = 0
    for _ in range(count):
        member, position = _read_entry(source, data, position)
        members.setdefault(member.name, member)
    return members


def read_member(source: SourceFile, member: Member) -> bytes:
    """Return the content of a member. It must not grow beyond the size that the directory declares."""
    if member.size > source.limits.structure_size:
        raise exceeds(f"{member.name} in {source.path}", "structure_size", source.limits.structure_size)
    content = _decompress(source, member, source.read(data_offset(source, member), member.stored_size), member.size + 1)
    if len(content) > member.size:
        text = f"{member.name} in {source.path} is larger than the {member.size} bytes that the zip directory declares"
        raise CompressionError(add_advice(text, "compression.bomb"), code="compression.bomb")
    return content


def read_start(source: SourceFile, member: Member, size: int) -> bytes:
    """Return up to `size` bytes from the start of a member."""
    stored = source.read(data_offset(source, member), min(member.stored_size, size))
    return _decompress(source, member, stored, size)[:size]


def _decompress(source: SourceFile, member: Member, stored: bytes, size: int) -> bytes:
    """Return at most `size` bytes of a member, as many as `stored` gives."""
    if member.method == _STORED:
        return stored
    if member.method != _DEFLATED:
        text = f"{member.name} in {source.path} is compressed with zip method {member.method}, which is not supported"
        raise CompatibilityError(f"{text}. Write the file without compression", code="compatibility.unknown_format")
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, size)
    except zlib.error as error:
        text = f"{member.name} in {source.path} cannot be decompressed: {error}"
        raise CompressionError(add_advice(text, "compression.malformed"), code="compression.malformed") from error


def data_offset(source: SourceFile, member: Member) -> int:
    """Return where the content of a member starts."""
    header = _unpack(source, _LOCAL, source.read(member.offset, _LOCAL.size), b"PK\x03\x04")
    return int(member.offset + _LOCAL.size + header[9] + header[10])


def _find_directory(source: SourceFile) -> tuple[int, int, int]:
    """Return start, size and number of entries of the directory, from the record at the end of the file."""
    tail_start = max(0, source.size - _END.size - _MAX_COMMENT)
    tail = source.read(tail_start, source.size - tail_start)
    position = tail.rfind(b"PK\x05\x06")
    if position < 0:
        raise truncated(source.path, "it starts like a zip file, but has no zip directory at its end")
    end = _unpack(source, _END, tail[position:], b"PK\x05\x06")
    count, size, start = end[4], end[5], end[6]
    locator_start = tail_start + position - _LOCATOR_64.size
    if (count == 0xFFFF or size == 0xFFFFFFFF or start == 0xFFFFFFFF) and locator_start >= 0:
        locator = source.read(locator_start, _LOCATOR_64.size)
        if locator.startswith(b"PK\x06\x07"):
            record = source.read(_LOCATOR_64.unpack(locator)[2], _END_64.size)
            end = _unpack(source, _END_64, record, b"PK\x06\x06")
            count, size, start = end[7], end[8], end[9]
    return start, size, count


def _read_entry(source: SourceFile, data: memoryview, position: int) -> tuple[Member, int]:
    fields = _unpack(source, _ENTRY, data[position:], b"PK\x01\x02")
    name_length, extra_length, comment_length = fields[10:13]
    position += _ENTRY.size
    raw_name = bytes(data[position : position + name_length])
    if len(raw_name) != name_length:
        raise truncated(source.path, "its zip directory ends inside an entry")
    extra = bytes(data[position + name_length : position + name_length + extra_length])
    name = raw_name.decode("utf-8" if fields[3] & 0x800 else "cp437", errors="replace")
    size, stored_size, offset = _wide_fields(extra, fields[9], fields[8], fields[16])
    if max(size, stored_size, offset) >= 2**63:
        raise malformed(source.path, f"its zip directory declares an impossible size for {name!r:.80}")
    position += name_length + extra_length + comment_length
    return Member(name, size, stored_size, crc=fields[7], method=fields[4], offset=offset), position


def _wide_fields(extra: bytes, *fields: int) -> list[int]:
    """Return the fields, those that do not fit into 32 bits from the zip64 part of `extra`."""
    wide, position = b"", 0
    while len(extra) - position >= 4:
        kind, length = struct.unpack_from("<2H", extra, position)
        if kind == 1:
            wide = extra[position + 4 : position + 4 + length]
            break
        position += 4 + length
    values = []
    for field in fields:
        if field == 0xFFFFFFFF and len(wide) >= 8:
            values.append(int.from_bytes(wide[:8], "little"))
            wide = wide[8:]
        else:
            values.append(field)
    return values


def _unpack(source: SourceFile, layout: struct.Struct, data: bytes | memoryview, signature: bytes) -> tuple[int, ...]:
    if len(data) < layout.size:
        raise truncated(source.path, "its zip directory ends too early")
    fields = layout.unpack_from(data)
    if fields[0] != signature:
        raise malformed(source.path, f"its zip directory has {bytes(fields[0])!r} instead of {signature!r}")
    return fields
