"""Creates instrumentors: the bundled ones when their library is imported, those of other packages at once.

Third parties add an instrumentor through the entry point group `ckpt_observe.instrumentors`; its object is a subclass of `Instrumentor`.
Test it with `ckpt_observe.testing.instrumentors.InstrumentorContract`.
"""

from __future__ import annotations

import importlib
import logging
import sys
import threading
from collections.abc import Collection, Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Final, Protocol

from ckpt_observe.instrument.import_hooks import when_imported
from ckpt_observe.libraries import ENTRY_POINT_GROUP, LIBRARIES, Library
from ckpt_observe.support import entry_points
from ckpt_observe.support.host_exceptions import raise_host_exception

if TYPE_CHECKING:
    from ckpt_observe.instrument.instrumentor import Instrumentor
    from ckpt_observe.instrument.targets import State, TargetReport

logger = logging.getLogger(__name__)

ALL: Final = frozenset({"*", "ckpt_observe"})
"""Names that disable all instrumentors: OpenTelemetry's wildcard, and the name of our entry point in OpenTelemetry's group."""

_PROCESSES: Final = Library("multiprocessing", "ckpt_observe.instrument.processes:ProcessInstrumentor", "multiprocessing")
"""Not one of `LIBRARIES`: it makes no checkpoints, and nobody selects it."""


class Observation(Protocol):
    """An instrumentor, or what stands in for it until its library is imported."""

    def instrument(self) -> None: ...
    def uninstrument(self) -> None: ...
    def report(self) -> list[TargetReport]: ...


def create_all(selection: Iterable[str], disabled: Collection[str] = ()) -> list[Observation]:
    """Create the selected instrumentors, without the disabled ones. One that fails to load is logged and skipped.

    A disabled name may be unknown, because OpenTelemetry's variable lists the instrumentations of other packages too.
    """
    if not ALL.isdisjoint(disabled):
        return []
    names = [name for name in selection if name not in disabled]
    observations = (DeferredInstrumentor(name, LIBRARIES[name]) if name in LIBRARIES else load(name) for name in names)
    return [observation for observation in observations if observation is not None]


def create_for_processes() -> Observation:
    """Create what carries the context to child processes, as soon as the program imports `multiprocessing`."""
    return DeferredInstrumentor("multiprocessing", _PROCESSES)


def load(name: str) -> Instrumentor | None:
    """Import and create an instrumentor. Return None, after logging why, if that fails."""
    return _load(name, LIBRARIES.get(name))


def _load(name: str, library: Library | None) -> Instrumentor | None:
    try:
        if library is not None:
            module, _, attribute = library.instrumentor.partition(":")
            create = getattr(importlib.import_module(module), attribute)
        else:
            create = entry_points.load(ENTRY_POINT_GROUP, name)
        instrumentor: Instrumentor = create()
        if not callable(getattr(instrumentor, "instrument", None)):
            raise TypeError(f"{create!r} returned a {type(instrumentor).__name__}, not an Instrumentor")
    except Exception as error:
        raise_host_exception(error)
        logger.exception("Cannot load the instrumentor %s; its library is not observed", name)
        return None
    return instrumentor


class DeferredInstrumentor:
    """Loads a bundled instrumentor when its library is imported, so that a program pays only for the libraries it uses."""

    def __init__(self, name: str, library: Library) -> None:
        self.name, self._library = name, library
        self._lock = threading.RLock()  # re-entrant: loading imports modules, and a signal handler may import the library
        self._enabled = self._is_watching = False
        self._instrumentor: Instrumentor | None = None

    def instrument(self) -> None:
        """Patch the library, now or when it is imported."""
        with self._lock:
            self._enabled = True
            is_watching, self._is_watching = self._is_watching, True
        if sys.modules.get(self._library.module) is not None or self._instrumentor is not None:
            self._load()
        elif not is_watching:
            when_imported(self._library.module, self._load, self._library.module.partition(".")[0])

    def _load(self, imported_module: ModuleType | None = None) -> None:
        """Create and enable the instrumentor. Must not raise, or the user's import fails.

        `imported_module`: its import has just ended, although Python itself does not say so before its hooks have run.
        """
        with self._lock:
            if self._enabled and self._instrumentor is None:
                self._instrumentor = _load(self.name, self._library)
            instrumentor = self._instrumentor if self._enabled else None
        if instrumentor is not None:
            if imported_module is not None:
                instrumentor.mark_complete(self._library.module)
            instrumentor.instrument()

    def state(self) -> State:
        """Return the state of an imported library as a whole, as `Instrumentor.state`; `failed` if its instrumentor could not be loaded."""
        return "failed" if self._instrumentor is None else self._instrumentor.state()

    def uninstrument(self) -> None:
        """Put the originals back and stop waiting for the import."""
        with self._lock:
            self._enabled = False
            instrumentor = self._instrumentor
        if instrumentor is not None:
            instrumentor.uninstrument()

    def report(self) -> list[TargetReport]:
        """Return the state of every target. Loads the instrumentor."""
        with self._lock:
            if self._instrumentor is None:
                self._instrumentor = _load(self.name, self._library)
        instrumentor = self._instrumentor
        if instrumentor is None:
            from ckpt_observe.instrument.targets import TargetReport  # noqa: PLC0415 - not before a library is imported

            return [TargetReport(self._library.instrumentor, "failed", "the instrumentor cannot be loaded; the log says why")]
        if self._enabled:
            instrumentor.instrument()
        return instrumentor.report()
