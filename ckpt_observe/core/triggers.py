"""When to save: small pure policies. `EverySteps(100) | EverySeconds(60)` saves when either is due."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ckpt_observe.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What a trigger may look at, after a step has completed."""

    step: int
    steps_since: int
    """Steps completed since the last save or the start."""
    seconds_since: float
    """Seconds since the last save or the start."""
    state: Any = None
    requested: bool = False
    """Somebody outside asked for a save: a signal, a preemption notice."""


class Trigger(ABC):
    """A policy."""

    @abstractmethod
    def due(self, moment: Moment) -> str | None:
        """Why a save is due now, or None."""

    def __or__(self, other: Trigger) -> Trigger:
        return AnyOf(self, other)

    def __and__(self, other: Trigger) -> Trigger:
        return AllOf(self, other)


@dataclass(frozen=True)
class Never(Trigger):
    """No automatic saves."""

    def due(self, moment: Moment) -> str | None:
        return None


@dataclass(frozen=True)
class EverySteps(Trigger):
    """Every `count` steps; 0 is never."""

    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 0:
            raise ConfigError(f"a run saves every so many steps, 0 for never, not every {self.count!r:.80}")

    def due(self, moment: Moment) -> str | None:
        return f"{self.count} steps" if 0 < self.count <= moment.steps_since else None


@dataclass(frozen=True)
class EverySeconds(Trigger):
    """When that much time has passed."""

    seconds: float

    def __post_init__(self) -> None:
        if not isinstance(self.seconds, int | float) or not self.seconds >= 0:
            raise ConfigError(f"a run saves every so many seconds, not every {self.seconds!r:.80}")

    def due(self, moment: Moment) -> str | None:
        return f"{self.seconds:g} seconds" if moment.seconds_since >= self.seconds else None


@dataclass(frozen=True)
class When(Trigger):
    """When the predicate says so."""

    predicate: Callable[[Moment], bool]

    def due(self, moment: Moment) -> str | None:
        return getattr(self.predicate, "__name__", "predicate") if self.predicate(moment) else None


@dataclass(frozen=True)
class OnRequest(Trigger):
    """When somebody outside asked; see `signals.SaveOnSignal`."""

    def due(self, moment: Moment) -> str | None:
        return "requested" if moment.requested else None


@dataclass(frozen=True)
class AnyOf(Trigger):
    """When one of the two is due."""

    left: Trigger
    right: Trigger

    def due(self, moment: Moment) -> str | None:
        return self.left.due(moment) or self.right.due(moment)


@dataclass(frozen=True)
class AllOf(Trigger):
    """When both are due."""

    left: Trigger
    right: Trigger

    def due(self, moment: Moment) -> str | None:
        left, right = self.left.due(moment), self.right.due(moment)
        return f"{left} and {right}" if left and right else None
