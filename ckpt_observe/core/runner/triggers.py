"""Triggers: when a run saves. `EverySteps(100) | EverySeconds(60)` saves when either is due."""

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
    """What a trigger can use for its decision, after a step has completed."""

    step: int
    steps_since: int
    """Steps completed since the last save or the start."""
    seconds_since: float
    """Seconds since the last save or the start."""
    state: Any = None
    requested: bool = False
    """Whether a save was requested from outside, by a signal or preemption notice."""


class Trigger(ABC):
    """Base class of triggers. Combine two with | (either is due) or & (both are due)."""

    @abstractmethod
    def due(self, moment: Moment) -> str | None:
        """Return the reason why a save is due now; None if none is due."""

    def __or__(self, other: Trigger) -> Trigger:
        return AnyOf(self, other)

    def __and__(self, other: Trigger) -> Trigger:
        return AllOf(self, other)


@dataclass(frozen=True)
class Never(Trigger):
    """Never due. An agent still saves when its run ends."""

    def due(self, moment: Moment) -> str | None:
        return None


@dataclass(frozen=True)
class EverySteps(Trigger):
    """Due when `count` steps have completed since the last save or the start; 0 means never."""

    count: int

    def __post_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 0:
            raise ConfigError(f"EverySteps needs a positive integer, or 0 for never, not {self.count!r:.80}")

    def due(self, moment: Moment) -> str | None:
        return f"{self.count} steps" if 0 < self.count <= moment.steps_since else None


@dataclass(frozen=True)
class EverySeconds(Trigger):
    """Due after a step if `seconds` have passed since the last save or the start."""

    seconds: float

    def __post_init__(self) -> None:
        if not isinstance(self.seconds, int | float) or not self.seconds >= 0:
            raise ConfigError(f"EverySeconds needs 0 or more seconds, not {self.seconds!r:.80}")

    def due(self, moment: Moment) -> str | None:
        return f"{self.seconds:g} seconds" if moment.seconds_since >= self.seconds else None


@dataclass(frozen=True)
class When(Trigger):
    """Due when `predicate(moment)` returns True."""

    predicate: Callable[[Moment], bool]

    def due(self, moment: Moment) -> str | None:
        return getattr(self.predicate, "__name__", "predicate") if self.predicate(moment) else None


@dataclass(frozen=True)
class OnRequest(Trigger):
    """Due when a save was requested from outside; see `SaveOnSignal`."""

    def due(self, moment: Moment) -> str | None:
        return "requested" if moment.requested else None


@dataclass(frozen=True)
class AnyOf(Trigger):
    """Due when at least one of two triggers is due."""

    first: Trigger
    second: Trigger

    def due(self, moment: Moment) -> str | None:
        return self.first.due(moment) or self.second.due(moment)


@dataclass(frozen=True)
class AllOf(Trigger):
    """Due when both of two triggers are due."""

    first: Trigger
    second: Trigger

    def due(self, moment: Moment) -> str | None:
        first, second = self.first.due(moment), self.second.due(moment)
        return f"{first} and {second}" if first and second else None


class SaveOnSignal:
    """While the `with` block runs, these signals request a save after the current step.

    Pass its method `save_requested` to `RunSettings`, and use a trigger that contains `OnRequest()`. An earlier handler function is
    called, too. The default action, such as ending the program on SIGTERM, is suppressed.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGUSR1,)) -> None:
        self._signals = tuple(dict.fromkeys(signals))  # each once: a duplicate would record our handler as the earlier one
        self._earlier_handlers: dict[int, Any] = {}
        self._is_requested = False

    def save_requested(self) -> bool:
        """Return whether a save was requested since the last call."""
        is_requested, self._is_requested = self._is_requested, False
        return is_requested

    def __enter__(self) -> Self:
        try:
            for number in self._signals:
                self._earlier_handlers[number] = signal.signal(number, self._handle)
        except BaseException:
            self._restore()  # if one signal cannot be handled, handle none: the block does not run
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._earlier_handlers.items():
            signal.signal(number, handler)
        self._earlier_handlers.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._is_requested = True
        handler = self._earlier_handlers.get(number)
        if callable(handler):
            handler(number, frame)
