"""The instrumentor `ckpt_observe` for the command `opentelemetry-instrument`, which finds it by its entry point.

It does the same as `import ckpt_observe.auto`: the settings come from the environment. Unless they name exporters, spans go to the
TracerProvider that the command has set, and to the local store.

Needs the package `opentelemetry-instrumentation`, which contains the command.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from opentelemetry.instrumentation.instrumentor import BaseInstrumentor

from ckpt_observe.api import Watch, observe_environment
from ckpt_observe.support.host_exceptions import raise_host_exception
from ckpt_observe.support.logs import logger


class CheckpointInstrumentor(BaseInstrumentor):  # type: ignore[misc]  # from an optional package
    """Observes checkpoints. Used like every OpenTelemetry instrumentor: `CheckpointInstrumentor().instrument()`."""

    _watch: Watch | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return no dependency: a library is patched when the program imports it."""
        return ()

    def _instrument(self, **_options: Any) -> None:
        """Observe this process. Never raises, because an exception would prevent the instrumentors after it from loading."""
        try:
            self._watch = observe_environment()
        except Exception as error:
            raise_host_exception(error)
            logger.error("Checkpoints are not observed: %s", error)

    def _uninstrument(self, **_options: Any) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
