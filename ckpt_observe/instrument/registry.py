"""The instrumentors that exist: the bundled ones, and those of other packages.

Third parties add an instrumentor through the entry point group `ckpt_observe.instrumentors`; its object is a subclass of `Instrumentor`.
Test it with `ckpt_observe.testing.instrumentors.InstrumentorContract`. An instrumentor's module is imported when it is loaded.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ckpt_observe.errors import ConfigError
from ckpt_observe.support import entry_points

if TYPE_CHECKING:
    from ckpt_observe.instrument.instrumentor import Instrumentor

logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "ckpt_observe.instrumentors"

INSTRUMENTORS: Final[Mapping[str, str]] = {
    "reference": "ckpt_observe.instrument.reference:ReferenceInstrumentor",
    "langgraph": "ckpt_observe.instrument.langgraph:LangGraphInstrumentor",
}
"""The bundled instrumentors: name, and `module:class`."""

ALL: Final = frozenset({"*", "ckpt_observe"})
"""Names that disable all instrumentors: OpenTelemetry's wildcard, and the name of our entry point in OpenTelemetry's group."""


def names() -> list[str]:
    """Return the names of all instrumentors. A bundled one takes precedence over an entry point of the same name."""
    return list(dict.fromkeys((*INSTRUMENTORS, *entry_points.names(ENTRY_POINT_GROUP))))


def load(selection: Iterable[str] | None = None, disabled: Collection[str] = ()) -> list[Instrumentor]:
    """Create the selected instrumentors (default: all), without the disabled ones. One that fails to load is logged and skipped.

    Raise ConfigError if a selected name is unknown. A disabled name may be unknown, because OpenTelemetry's variable lists the
    instrumentations of other packages too.
    """
    available = names()
    selected = available if selection is None else list(dict.fromkeys(selection))
    for name in selected:
        if name not in available:
            raise ConfigError(f"unknown instrumentor {name!r}; available: {', '.join(sorted(available))}")
    if not ALL.isdisjoint(disabled):
        return []
    instrumentors = (_create(name) for name in selected if name not in disabled)
    return [instrumentor for instrumentor in instrumentors if instrumentor is not None]


def _create(name: str) -> Instrumentor | None:
    try:
        if name in INSTRUMENTORS:
            module, _, attribute = INSTRUMENTORS[name].partition(":")
            create = getattr(importlib.import_module(module), attribute)
        else:
            create = entry_points.load(ENTRY_POINT_GROUP, name)
        instrumentor: Instrumentor = create()
        if not callable(getattr(instrumentor, "instrument", None)):
            raise TypeError(f"{create!r} returned a {type(instrumentor).__name__}, not an Instrumentor")
    except Exception:
        logger.exception("Cannot load the instrumentor %s; its library is not observed", name)
        return None
    return instrumentor
