"""What this process does with what happens in it: one object, set up by `observe()` and read by every operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Marks(Protocol):
    """Words that are kept the moment they are set."""

    def __setitem__(self, number: int, word: int, /) -> None: ...


class Page(Protocol):
    """Where one operation's lines are kept; see the journal."""

    @property
    def marks(self) -> Marks: ...
    def append(self, line: bytes, /) -> None: ...
    def finish(self, line: bytes, /) -> None: ...


class Recorder:
    """`on` is read at every patched call, so it is a plain attribute."""

    __slots__ = ("on", "samples", "take", "traceparent")

    def __init__(self) -> None:
        self.on = False
        self.take: Callable[[], Page | None] = lambda: None
        """A page for an operation that begins, or None: not recorded."""
        self.traceparent = ""
        self.samples: Callable[[str, bool | None], bool] | None = None
        """Whether the trace of that id, whose parent was sampled or not (None: it begins here), is recorded. None: the parent decides."""


recorder = Recorder()
