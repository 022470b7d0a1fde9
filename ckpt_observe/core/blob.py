"""Bytes in several pieces: what serializers make and stores write, without joining what is large.

`len()` is the number of bytes, whatever the number of pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

Buffer = bytes | bytearray | memoryview


class Blob:
    """An immutable run of bytes held as pieces."""

    __slots__ = ("_pieces", "size")

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self._pieces = tuple(pieces)
        self.size = sum(map(len, self._pieces))

    @property
    def pieces(self) -> tuple[Buffer, ...]:
        return self._pieces

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self.pieces)

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)

    def joined(self) -> Buffer:
        """All in one piece, copied only if there are several."""
        pieces = self.pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def as_ready(self) -> Iterator[tuple[int, Buffer]]:
        """Each piece with its place, for a medium that takes them in any order: those first that need not be waited for."""
        place = 0
        for piece in self.pieces:
            yield place, piece
            place += len(piece)


def parts(pieces: Iterable[Buffer], size: int) -> Iterator[list[memoryview]]:
    """The bytes in runs of `size`, each as views, without copying."""
    views: list[memoryview] = []
    room = size
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            views.append(rest[:room])
            room -= len(views[-1])
            rest = rest[len(views[-1]) :]
            if not room:
                yield views
                views, room = [], size
    if views:
        yield views


class HeadLast(Blob):
    """A blob whose first piece tells about the others, and is made when they have been looked through."""

    __slots__ = ("_head", "_head_size")

    def __init__(self, head: Callable[[], bytes], head_size: int, rest: Blob) -> None:
        super().__init__(rest.pieces)
        self.size += head_size
        self._head = head
        self._head_size = head_size

    @property
    def pieces(self) -> tuple[Buffer, ...]:
        return self._head(), *self._pieces

    def as_ready(self) -> Iterator[tuple[int, Buffer]]:
        place = self._head_size
        for piece in self._pieces:
            yield place, piece
            place += len(piece)
        yield 0, self._head()
