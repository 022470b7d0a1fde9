"""For `opentelemetry-instrument`: this package as one of its instrumentations, called `ckpt_observe`.

Found by the entry point `opentelemetry_instrumentor`; needs the package `opentelemetry-instrumentation`, which only that command has to
have. The same as `import ckpt_observe.auto`: the settings come from the environment, and the TracerProvider that the command has set up
gets the spans.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from ckpt_observe.api import Watch, observe
from ckpt_observe.record.guard import logger


class CheckpointInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # of an optional package
    """Switched on and off as every instrumentor of OpenTelemetry: `CheckpointInstrumentor().instrument()`."""

    _watch: Watch | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """None that must be there: a library is patched when the program imports it."""
        return ()

    def _instrument(self, **_options: Any) -> None:
        """Never raises: that would keep all instrumentations after it from being loaded."""
        try:
            self._watch = observe()
        except Exception as error:
            logger.error("ckpt_observe: not observing: %s", error)

    def _uninstrument(self, **_options: Any) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
