"""The opcodes of a pickle and how their arguments are read. Long payloads, such as the data of arrays, are skipped."""

from __future__ import annotations

from collections.abc import Callable
from pickletools import OpcodeInfo
from typing import Any, Final, cast

from ckpt_observe.readers.streams import ByteStream

_MAX_PAYLOAD: Final = 4096
"""Bytes of a string or number that are read; longer ones are skipped."""
_LENGTH_WIDTHS: Final = {-2: 1, -3: 4, -4: 4, -5: 8}
"""Bytes of the length before a payload, by `pickletools`' numbers for such arguments."""
_LINES: Final = {"STRING": 1, "PERSID": 1, "GLOBAL": 2, "INST": 2}
"""Lines of text after these opcodes."""

ArgumentReader = Callable[[ByteStream], Any]


def argument_reader(operation: OpcodeInfo) -> ArgumentReader | None:
    """Return the function that reads the argument of an opcode; None if it has none."""
    name, argument = operation.name, operation.arg
    if argument is None:
        return None
    if name in _LINES:
        return lambda stream: _read_lines(stream, _LINES[name])
    if argument.n in _LENGTH_WIDTHS:
        return lambda stream: _read_payload(stream, name, _LENGTH_WIDTHS[argument.n])
    if argument.n == 1:
        return ByteStream.read_byte
    return cast("ArgumentReader", argument.reader)


def _read_lines(stream: ByteStream, count: int) -> str:
    # Without escapes: `pickletools` decodes them, which warns about invalid ones.
    return " ".join(stream.readline()[:-1].strip(b"'\"").decode("utf-8", "replace") for _ in range(count))


def _read_payload(stream: ByteStream, name: str, width: int) -> Any:
    """Return a string, bytes or a number whose length is before it; None for a long one."""
    length = int.from_bytes(stream.read(width), "little")
    if length > _MAX_PAYLOAD:
        stream.skip(length)
        return None
    data = stream.read(length)
    if name.startswith("LONG"):
        return int.from_bytes(data, "little", signed=True) if length <= 16 else None
    return data.decode("utf-8", "surrogatepass") if "UNICODE" in name else data
