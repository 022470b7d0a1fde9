"""The interface between delivery and exporters, which must not import each other.

Third parties add an exporter through the entry point group `ckpt_observe.exporters`: the entry point's name is the name that
`CKPT_OBSERVE_EXPORTERS` accepts, and its object is called with the settings and returns the exporter. Test it with
`ckpt_observe.testing.exporters.ExporterContract`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:  # spans import msgspec, which takes 5 ms, and a program that saves nothing has none
    from ckpt_observe.span import Span

MAX_RETRY_AFTER: Final = 3600.0
"""Seconds that a server may ask us to wait before a retry. Longer times are reduced to it, because servers make mistakes."""
ENTRY_POINT_GROUP: Final = "ckpt_observe.exporters"

Health: TypeAlias = Callable[[], Mapping[tuple[str, tuple[str, ...]], float]]
"""Returns the counters of delivery, by metric name and label values."""


@runtime_checkable
class Exporter(Protocol):
    """Sends spans to one backend. Subclass it to inherit the defaults.

    The constructor opens nothing; connect in `start` or at the first `send`. Only one thread calls `send`.
    """

    name: str

    durable: bool = True
    """Whether records that a process could not deliver before it ended are delivered by another one. False for a console."""

    receives_unsampled: bool = False
    """Whether `send` also gets the spans of traces that are not sampled. True for metrics: they count every operation."""

    settle_seconds: float | None = None
    """None if the backend keeps one copy of a span that is sent twice. Else the seconds after which it knows which spans it has received.

    In the second case, `doubt` and `may_have` are called so that no span is sent twice, even if a process dies while it sends.
    """

    @property
    def identity(self) -> str:
        """Identifies the backend in journals, which store a position for each. Override it if one name may have several addresses."""
        return self.name

    def start(self, health: Health) -> None:
        """Called once, when delivery starts. For exporters that also publish on their own, such as a metrics endpoint."""
        return

    def send(self, spans: Sequence[Span], /) -> None:
        """Store the spans durably, then return. A repeated batch must not duplicate them.

        Raises:
            ExporterRetryError: The backend cannot store the batch now. The same spans are sent again later.
            ExporterServerError: The same, but one of the spans may be the cause. If that span keeps failing alone while others are
                accepted, it is set aside on disk and sent again later.
            ExporterRefusedError: The backend will never accept this batch. It is split until the bad span is alone, which is dropped.

        """

    def doubt(self, spans: Sequence[Span], /) -> None:
        """Called before `send` if another process may have sent these spans: `send` then asks the backend which of them it has."""
        return

    def may_have(self, spans: Sequence[Span], /) -> bool:
        """Return whether the backend may have some of the spans. Called after a `send` that failed."""
        return True

    def close(self) -> None:
        """Release connections. May be called twice."""
