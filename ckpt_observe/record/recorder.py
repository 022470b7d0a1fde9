"""What this process does with what happens in it: one object, set up by `observe()` and read by every operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Page(Protocol):
    """Where one operation's lines are kept; see the journal."""

    def append(self, line: bytes, /) -> None: ...
    def mark(self, offset: int, word: int, /) -> None: ...
    def finish(self, line: bytes, /) -> None: ...


class Recorder:
    """`on` is read at every patched call, so it is a plain attribute."""

    __slots__ = ("on", "take", "traceparent")

    def __init__(self) -> None:
        self.on = False
        self.take: Callable[[], Page | None] = lambda: None
        """A page for an operation that begins, or None: not recorded."""
        self.traceparent = ""


recorder = Recorder()
