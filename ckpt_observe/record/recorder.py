"""The switch between operations and the journal: one object, set by `observe()` and read by every operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias


class Marks(Protocol):
    """64-bit words in shared memory. A word survives the process as soon as it is set."""

    def __setitem__(self, number: int, word: int, /) -> None: ...


class Page(Protocol):
    """Holds the lines of one operation; `journal.pages` implements it."""

    @property
    def marks(self) -> Marks: ...
    def append(self, line: bytes, /) -> bool: ...
    def finish(self, line: bytes, /) -> None: ...
    def discard(self) -> None: ...


PageSource: TypeAlias = Callable[[], Page | None]
"""Returns a page for a new operation, or None if the operation is not recorded."""
SampleRule: TypeAlias = Callable[[str, bool | None], bool]
"""Returns whether a trace is sampled, from its id and whether its parent is sampled (None: it has no parent)."""


def _no_page() -> None:
    """Return no page: operations are not recorded."""


class Recorder:
    """Knows whether and where operations are recorded. The hot path reads the plain attributes; everything else uses the methods."""

    __slots__ = ("on", "process_parent", "samples", "take", "tensor_digests", "unsampled")

    def __init__(self) -> None:
        self.on = False
        """False: patched calls skip the instrumentation, and nothing is recorded. Read at every patched call."""
        self.take: PageSource = _no_page
        self.process_parent: Any = None
        """The `trace_context.Parent` of operations that have no other parent: a span of the process that started this one; or None."""
        self.samples: SampleRule | None = None
        """None: every new trace is sampled, and the parent's decision is kept."""
        self.unsampled: str | None = None
        """How operations of traces that are not sampled are recorded, for metrics: the value of `events.UNSAMPLED`. None: not at all."""
        self.tensor_digests = False
        """Whether instrumentors digest samples of the content of tensors."""

    def start(
        self,
        take: PageSource,
        *,
        samples: SampleRule | None = None,
        unsampled: str | None = None,
        process_parent: Any = None,
        tensor_digests: bool = False,
    ) -> None:
        """Record operations from now on, on pages that `take` returns. `samples` decides which of them become spans."""
        self.samples, self.unsampled = samples, unsampled
        self.process_parent, self.take, self.tensor_digests = process_parent, take, tensor_digests
        self.on = True

    def use_pages(self, take: PageSource) -> None:
        """Take the pages of new operations from another source."""
        self.take = take

    def discard(self) -> None:
        """Record no new operation, because there is nowhere to record it. Patched calls still run through the instrumentation."""
        self.take = _no_page

    def pause(self) -> None:
        """Record no new operation: patched calls skip the instrumentation. Running operations still end on their pages."""
        self.on = False

    def stop(self) -> None:
        """Record no new operation until the next `start`, and let go of the source of pages."""
        self.on = False
        self.take, self.samples, self.unsampled = _no_page, None, None


recorder = Recorder()
