"""Which instrumentors there are. Names and strings only: a library, and wrapt, is imported when its instrumentor is loaded."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from ckpt_observe.errors import ConfigError

if TYPE_CHECKING:
    from ckpt_observe.instrument.base import Instrumentor

logger = logging.getLogger(__name__)

INSTRUMENTORS: Final[Mapping[str, str]] = {
    "reference": "ckpt_observe.instrument.reference:ReferenceInstrumentor",
}

ALL: Final = frozenset({"*", "ckpt_observe"})
"""Names that disable all of them: OpenTelemetry's, and that of our entry point in its group of instrumentors."""


def load(names: Iterable[str] | None = None, disabled: Collection[str] = ()) -> list[Instrumentor]:
    """One new instrumentor per name, all there are by default, without the disabled. One that fails is logged and left out.

    A disabled name may be unknown: the variable that lists them is shared with other instrumentations.
    """
    wanted = list(INSTRUMENTORS if names is None else dict.fromkeys(names))
    for name in wanted:
        if name not in INSTRUMENTORS:
            raise ConfigError(f"there is no instrumentor {name!r}; there are {', '.join(sorted(INSTRUMENTORS))}")
    if not ALL.isdisjoint(disabled):
        return []
    made = (_make(name) for name in wanted if name not in disabled)
    return [instrumentor for instrumentor in made if instrumentor is not None]


def _make(name: str) -> Instrumentor | None:
    try:
        module, _, attribute = INSTRUMENTORS[name].partition(":")
        instrumentor: Instrumentor = getattr(importlib.import_module(module), attribute)()
    except Exception:
        logger.exception("the instrumentor %s cannot be loaded; its library is not observed", name)
        return None
    return instrumentor
