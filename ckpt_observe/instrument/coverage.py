"""Which checkpoint libraries a program has imported, whether they are observed, and if not, what to do."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from ckpt_observe import libraries
from ckpt_observe.instrument import registry
from ckpt_observe.instrument.registry import DeferredInstrumentor, Observation

if TYPE_CHECKING:
    from ckpt_observe.instrument.targets import State

INSTRUMENTED: Final = "instrumented"
_WAITING: Final = "waiting"
NOT_INSTRUMENTED: Final = "not instrumented"
MARK_CALLS: Final = "mark its saves and loads with ckpt_observe.checkpoint()"

_STATES: Final[Mapping[State, tuple[str, str]]] = {
    "patched": (INSTRUMENTED, ""),
    "renamed": ("not fully instrumented, because callables were renamed in this version", "for their names run: ckpt-observe doctor"),
    "failed": ("not instrumented, because of an error", "see the log, or run: ckpt-observe doctor"),
    "waiting": (_WAITING, "the part of it that makes checkpoints was not imported"),
    "not installed": ("not installed", ""),
    "off": ("switched off", ""),
    "absent": (_WAITING, "this version of it makes no checkpoints"),
}
"""How the state of an instrumentor reads for a user, and what to do."""


class Coverage(NamedTuple):
    """An imported library: whether it is observed, and what to do if not."""

    title: str
    state: str
    advice: str = ""

    @property
    def is_problem(self) -> bool:
        """Whether checkpoints that the library makes would not be recorded."""
        return self.state not in (INSTRUMENTED, _WAITING)

    @property
    def is_logged(self) -> bool:
        """Whether the instrumentor has logged the problem when the library was imported."""
        return self.state in (_STATES["renamed"][0], _STATES["failed"][0])

    def __str__(self) -> str:
        return f"{self.title} is {self.state}" + (f": {self.advice}" if self.advice else "")


def imported_libraries(observations: Iterable[Observation], disabled: Collection[str]) -> list[Coverage]:
    """Return the known checkpoint libraries that are imported.

    `observations` are the instrumentors of the program, and `disabled` those that OpenTelemetry's variable disables.
    """
    active = {observation.name: observation for observation in observations if isinstance(observation, DeferredInstrumentor)}
    uses = [
        Coverage(library.title, *_STATES[active[name].state()])
        if name in active
        else Coverage(library.title, "switched off", _how_to_switch_on(name, disabled))
        for name, library in libraries.LIBRARIES.items()
        if library.module in sys.modules and (name in active or not library.is_ubiquitous)
    ]
    uninstrumented = libraries.uninstrumented_libraries().values()
    return uses + [
        Coverage(library.title, NOT_INSTRUMENTED, MARK_CALLS)
        for library in uninstrumented
        if any(module in sys.modules for module in library.modules)
    ]


def _how_to_switch_on(name: str, disabled: Collection[str]) -> str:
    blocking = [each for each in disabled if each == name or each in registry.ALL]
    if blocking:
        return f"remove {blocking[0]} from OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
    return f"set CKPT_OBSERVE_LIBRARIES=default,+{name}"
