"""The opcodes of a pickle and how their arguments are read. Long payloads are skipped."""

from __future__ import annotations

import pickletools
from typing import Any, Final

from ckpt_observe.readers.streams import ByteStream

_MAX_PAYLOAD: Final = 4096
"""Bytes of a string or number that are read; longer ones are skipped."""
_LENGTH_WIDTHS: Final = {-2: 1, -3: 4, -4: 4, -5: 8}
"""Bytes of the length before a payload, by `pickletools`' numbers for such arguments."""
_LINES: Final = {"STRING": 1, "PERSID": 1, "GLOBAL": 2, "INST": 2}
"""Lines of text after these opcodes."""
OPCODES: Final = {ord(opcode.code): opcode for opcode in pickletools.opcodes}
"""By their byte."""


def read_argument(opcode: pickletools.OpcodeInfo, stream: ByteStream) -> Any:
    """Return the argument of an opcode that was just read; None if it has none, or one that is too long to be read."""
    argument: Any = opcode.arg  # the type of its reader asks for more than `read` and `readline`
    if argument is None:
        return None
    if opcode.name in _LINES:  # without escapes: `pickletools` decodes them, which warns about invalid ones
        lines = [stream.readline()[:-1].strip(b"'\"").decode("utf-8", "replace") for _ in range(_LINES[opcode.name])]
        return " ".join(lines)
    width = _LENGTH_WIDTHS.get(argument.n)
    if width is None:
        return argument.reader(stream)
    length = int.from_bytes(stream.read(width), "little")
    if length > _MAX_PAYLOAD:
        stream.skip(length)
        return None
    data = stream.read(length)
    if opcode.name.startswith("LONG"):
        return int.from_bytes(data, "little", signed=True) if length <= 16 else None
    return data.decode("utf-8", "surrogatepass") if "UNICODE" in opcode.name else data
