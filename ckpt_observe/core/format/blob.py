"""Bytes in several pieces: what serializers produce and stores write. Large pieces need not be joined, which would copy them.

`len()` is the number of bytes, not of pieces.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import repeat, takewhile
from typing import Any

from ckpt_observe.support.host_exceptions import raise_host_exception

Buffer = bytes | bytearray | memoryview


class Blob:
    """An immutable sequence of bytes held as pieces."""

    __slots__ = ("_pieces", "size")

    def __init__(self, pieces: Sequence[Buffer]) -> None:
        self._pieces = tuple(pieces)
        self.size = sum(map(len, self._pieces))

    @property
    def pieces(self) -> tuple[Buffer, ...]:
        return self._pieces

    @property
    def is_live(self) -> bool:
        """Whether a piece is memory of the program, such as an array, which can change at any time."""
        return any(type(piece) is memoryview and piece for piece in self._pieces)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self.pieces)

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)

    def joined(self) -> Buffer:
        """Return everything as one buffer. This copies the bytes, unless there is a single piece."""
        pieces = self.pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def as_ready(self) -> Iterator[tuple[int, Buffer]]:
        """Yield the offset of each piece and the piece, in the order in which the pieces become available."""
        offset = 0
        for piece in self.pieces:
            yield offset, piece
            offset += len(piece)


class DeferredHeadBlob(Blob):
    """A blob whose first piece describes the rest and is computed last, so that a store can write the rest meanwhile."""

    __slots__ = ("_hash_again", "_head", "_head_size", "later_digest")

    def __init__(self, head: Callable[[], bytes], head_size: int, rest: Blob, hash_again: Callable[[], Future[str]]) -> None:
        """`hash_again` starts to hash `rest`. It is called after all pieces of live memory were written."""
        super().__init__(rest.pieces)
        self.size += head_size
        self._head = head
        self._head_size = head_size
        self._hash_again = hash_again
        self.later_digest: Future[str] | None = None
        """The digest of the memory after it was written, computed while the store syncs; None if that was not done."""

    @property
    def pieces(self) -> tuple[Buffer, ...]:
        return self._head(), *self._pieces

    def as_ready(self) -> Iterator[tuple[int, Buffer]]:
        offset = self._head_size
        for piece in self._pieces:
            yield offset, piece
            offset += len(piece)
        head = self._head()
        if self.is_live:
            self.later_digest = self._hash_again()
        yield 0, head


def safe_encode(encoder: Any) -> Callable[[Any], bytearray]:
    """Return a function that encodes with a msgspec encoder. If memory runs out, it raises MemoryError; `encode` crashes the process."""
    encode_into = encoder.encode_into

    def encode(value: Any) -> bytearray:
        buffer = bytearray()
        encode_into(value, buffer)
        return buffer

    return encode


def require_memory(size: int) -> None:
    """Raise MemoryError if so many bytes cannot be allocated now. They are not touched, so this takes microseconds."""
    try:
        mmap.mmap(-1, size).close()
    except OSError as error:
        raise_host_exception(error)
        raise MemoryError(f"cannot allocate {size} bytes") from error


def split_sizes(pieces: Iterable[Buffer], sizes: Iterable[int]) -> Iterator[list[memoryview]]:
    """Yield the next `size` bytes for each size, fewer if the bytes end, each as a list of views. Nothing is copied."""
    views = (memoryview(piece) for piece in pieces)
    rest: memoryview | None = memoryview(b"")
    for size in sizes:
        part: list[memoryview] = []
        room = size
        while room > 0 and rest is not None:
            if rest:
                part.append(rest[:room])
                room -= len(part[-1])
                rest = rest[len(part[-1]) :]
            else:
                rest = next(views, None)
        yield part


def split_evenly(pieces: Iterable[Buffer], size: int) -> Iterator[list[memoryview]]:
    """Yield the bytes in chunks of `size` bytes, the last may be shorter, each as a list of views. Nothing is copied."""
    return takewhile(bool, split_sizes(pieces, repeat(size)))
