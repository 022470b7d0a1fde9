"""Stands in for an exporter that cannot be built, and tries again with every batch: a package may be broken, or a file missing for now.

Delivery treats it like an exporter whose backend is down: it warns once, keeps the spans, and tries again with growing pauses. The other
exporters are not affected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckpt_observe.errors import ExporterSetupError
from ckpt_observe.exporter import Exporter, Health
from ckpt_observe.span import Span, sampled_spans
from ckpt_observe.support.host_exceptions import raise_host_exception


class UnbuiltExporter(Exporter):
    """Builds the exporter when it can, and then passes everything on to it.

    Args:
        name: Name of the exporter.
        identity: Its identity, as far as it is known without building it. It stays the same, because the journal contains it.
        build: Builds the exporter, or raises.

    """

    receives_unsampled = True  # it is not known yet; `send` drops what the exporter is not to get

    def __init__(self, name: str, identity: str, build: Callable[[], Exporter]) -> None:
        self.name = name
        self._identity, self._build = identity, build
        self._exporter: Exporter | None = None
        self._health: Health | None = None

    def __repr__(self) -> str:
        return f"UnbuiltExporter({self._identity!r})"

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def settle_seconds(self) -> float | None:  # type: ignore[override]
        return self._exporter.settle_seconds if self._exporter else None

    def doubt(self, spans: Sequence[Span]) -> None:
        if self._exporter is not None:
            self._exporter.doubt(spans)

    def may_have(self, spans: Sequence[Span]) -> bool:
        return self._exporter is not None and self._exporter.may_have(spans)

    def start(self, health: Health) -> None:
        """Start the exporter as soon as it is built."""
        self._health = health

    def send(self, spans: Sequence[Span]) -> None:
        """Send the spans if the exporter can be built by now. ExporterSetupError if it cannot."""
        if self._exporter is None:
            try:
                exporter = self._build()
                if self._health is not None:
                    exporter.start(self._health)
            except Exception as error:
                raise_host_exception(error)
                raise ExporterSetupError(describe_failure(error)) from error
            self._exporter = exporter
        selection = spans if self._exporter.receives_unsampled else sampled_spans(spans)
        if selection:
            self._exporter.send(selection)

    def close(self) -> None:
        if self._exporter is not None:
            self._exporter.close()


def describe_failure(error: Exception) -> str:
    """Return why an exporter was not built, for a log line."""
    return f"it cannot be built ({type(error).__name__}: {error})"
