"""Bytes in several pieces: what serializers make and stores write, without joining what is large.

`len()` is the number of bytes, whatever the number of pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

Buffer = bytes | bytearray | memoryview


class Blob:
    """An immutable run of bytes held as pieces."""

    __slots__ = ("pieces", "size")

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self.pieces = tuple(pieces)
        self.size = sum(map(len, self.pieces))

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self.pieces)

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)

    def joined(self) -> Buffer:
        """All in one piece, copied only if there are several."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)
