"""How often processes die: a Weibull distribution, fitted to the lifetimes of observed processes.

Its shape is 1 for failures at random (exponential). Failures of real machines cluster, with a shape of 0.5 to 0.9; preemption and time
limits, which come after about the same time, have a shape above 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from ckpt_observe.query import Lifetime

MIN_DEATHS_FOR_SHAPE: Final = 10
"""Deaths from which on the shape is fitted. With fewer, its error costs more than the assumption of random failures."""
_MIN_SHAPE: Final = 0.2
_MAX_SHAPE: Final = 10.0
NO_DEATHS: Final = 3.0
"""If none died in a time t, the mean time between failures is at least t / 3, with 95 % confidence."""


class FailureModel(msgspec.Struct, frozen=True):
    """The distribution of the time until a process dies."""

    mean: float
    """Mean time between failures in seconds."""
    shape: float = 1.0
    deaths: int = 0
    """Number of deaths from which it was fitted. 0: none was observed, and the mean is a lower bound or an assumption."""

    def survival(self, seconds: float) -> float:
        """Return the probability that a process lives longer than this."""
        return math.exp(-((seconds / self._scale) ** self.shape)) if seconds > 0 else 1.0

    @property
    def _scale(self) -> float:
        return self.mean / math.gamma(1 + 1 / self.shape)


def fit_failures(lifetimes: Sequence[Lifetime]) -> FailureModel | None:
    """Return the most likely distribution. Processes that did not die count as lifetimes that were cut short. None without any time."""
    seconds = [max(lifetime.seconds, 1e-6) for lifetime in lifetimes]
    total = math.fsum(lifetime.seconds for lifetime in lifetimes)
    ends = [value for value, lifetime in zip(seconds, lifetimes, strict=True) if lifetime.died]
    if not total:
        return None
    if not ends:
        return FailureModel(mean=total / NO_DEATHS)
    if len(ends) < MIN_DEATHS_FOR_SHAPE:
        return FailureModel(mean=total / len(ends), deaths=len(ends))
    unit = max(seconds)  # keeps the powers small
    shape = _fit_shape([value / unit for value in seconds], [value / unit for value in ends])
    scale = unit * (math.fsum((value / unit) ** shape for value in seconds) / len(ends)) ** (1 / shape)
    return FailureModel(mean=scale * math.gamma(1 + 1 / shape), shape=shape, deaths=len(ends))


def _fit_shape(seconds: Sequence[float], ends: Sequence[float]) -> float:
    """Return the shape with the greatest likelihood: the root of its derivative, which increases with the shape."""
    mean_log = math.fsum(map(math.log, ends)) / len(ends)
    low, high = _MIN_SHAPE, _MAX_SHAPE
    for _ in range(60):
        shape = math.sqrt(low * high)
        powers = [value**shape for value in seconds]
        weighted = math.fsum(power * math.log(value) for power, value in zip(powers, seconds, strict=True))
        if weighted / math.fsum(powers) - 1 / shape - mean_log > 0:
            high = shape
        else:
            low = shape
    return math.sqrt(low * high)
