"""When to save: small pure policies. `EverySteps(100) | EverySeconds(60)` saves when either is due."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self

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


class SaveOnSignal:
    """While the block runs, these signals ask for a save at the next step, where the trigger has `OnRequest()`.

    A function that handled them before is called too. What the system does by default, such as to end the program at SIGTERM, is not done.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGUSR1,)) -> None:
        self._signals = tuple(dict.fromkeys(signals))  # each once: the second time, what handled it before would be this
        self._before: dict[int, Any] = {}
        self._asked = False

    def taken(self) -> bool:
        """Whether a save was asked for since this was last called."""
        asked, self._asked = self._asked, False
        return asked

    def __enter__(self) -> Self:
        try:
            for number in self._signals:
                self._before[number] = signal.signal(number, self._handle)
        except BaseException:
            self._restore()  # one that cannot be handled leaves none handled: there is no block that would end
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        before = self._before.get(number)
        if callable(before):
            before(number, frame)
