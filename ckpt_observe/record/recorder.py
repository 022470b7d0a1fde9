"""The switch between operations and the journal: one object, set by `observe()` and read by every operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias


class Marks(Protocol):
    """64-bit words in shared memory. A word survives the process as soon as it is set."""

    def __setitem__(self, number: int, word: int, /) -> None: ...


class Page(Protocol):
    """Holds the lines of one operation; see the journal."""

    @property
    def marks(self) -> Marks: ...
    def append(self, line: bytes, /) -> None: ...
    def finish(self, line: bytes, /) -> None: ...


PageSource: TypeAlias = Callable[[], Page | None]
"""Returns a page for a new operation, or None if the operation is not recorded."""
SampleRule: TypeAlias = Callable[[str, bool | None], bool]
"""Returns whether a trace is recorded, from its id and whether its parent is sampled (None: it has no parent)."""


def _no_page() -> None:
    """Return no page: operations are not recorded."""


class Recorder:
    """Whether and where operations are recorded. The hot path reads the plain attributes; everything else uses the methods."""

    __slots__ = ("on", "samples", "take", "traceparent")

    def __init__(self) -> None:
        self.on = False
        """Read at every patched call."""
        self.take: PageSource = _no_page
        self.traceparent = ""
        """Parent of the first span of this process, as a W3C `traceparent`."""
        self.samples: SampleRule | None = None
        """None: every new trace is recorded, and the parent's decision is kept."""

    def start(self, take: PageSource, *, samples: SampleRule | None = None, traceparent: str = "") -> None:
        """Record every operation from now on, on pages of this source."""
        self.traceparent, self.samples, self.take = traceparent, samples, take
        self.on = True

    def use_pages(self, take: PageSource) -> None:
        """Take the pages of new operations from another source."""
        self.take = take

    def discard(self) -> None:
        """Record no new operation, because there is nowhere to record it. Patched calls still run through the instrumentation."""
        self.take = _no_page

    def pause(self) -> None:
        """Let patched calls skip the instrumentation."""
        self.on = False

    def stop(self) -> None:
        """Record nothing, until the next `start`."""
        self.on = False
        self.take, self.samples = _no_page, None


recorder = Recorder()
