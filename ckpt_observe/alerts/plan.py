"""What a site is like, and the times that follow from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ckpt_observe.errors import ConfigError

MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 86400.0

_UNITS: Final = {"w": 7 * DAY, "d": DAY, "h": HOUR, "m": MINUTE, "s": 1.0, "ms": 0.001}
_DURATION: Final = re.compile(r"(\d+(ms|[wdhms]))+")


def seconds(text: str) -> float:
    """A duration as Prometheus writes it: `90s`, `30m`, `1h30m`, `1d`."""
    if not _DURATION.fullmatch(text):
        raise ConfigError(f"{text!r} is no duration: write it as 90s, 30m, 1h30m or 1d")
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|[wdhms])", text))


def duration(length: float) -> str:
    """Seconds as Prometheus reads them; never nothing."""
    left, parts = max(1, round(length * 1000)), []
    for unit in ("d", "h", "m", "s", "ms"):
        size = round(_UNITS[unit] * 1000)
        if left >= size:
            parts.append(f"{left // size}{unit}")
            left %= size
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class Plan:
    """A site. Times are in seconds."""

    interval: float = 30 * MINUTE
    """Between two saves; the shortest where tasks differ. A task's own, declared or learnt, is known from its metrics."""
    slo: float = 0.99
    """Share of saves that are meant to succeed."""
    batch: bool = False
    """Metrics are there only while a job runs, so that their absence means nothing."""
    runbook: str = "runbook.md"
    """Address of the runbook; an alert links to its own heading there."""

    def __post_init__(self) -> None:
        if not 0 < self.interval <= 31 * DAY:
            raise ConfigError(f"an interval of {self.interval:g} s between saves cannot be: give one up to a month, such as 30m")
        if not 0 < self.slo < 1:
            raise ConfigError(f"an objective of {self.slo:g} cannot be: give the share of saves that are to succeed, such as 0.99")

    @property
    def settle(self) -> float:
        """How long a state must last that may pass by itself."""
        return self.interval / 6

    @property
    def window(self) -> float:
        """In which failures are counted: a dozen saves."""
        return min(12 * self.interval, 7 * DAY)

    @property
    def past(self) -> float:
        """What lies before that window, to compare with."""
        return min(8 * self.window, 14 * DAY)

    @property
    def recent(self) -> float:
        """How long an attempt is of interest. What nobody tried for longer was given up, and is no alarm any more."""
        return min(96 * self.interval, 7 * DAY)

    @property
    def ratio(self) -> float:
        """Share of failures within the window at which a dozen saves are too bad for the objective: ten times what it allows."""
        return min(0.5, round(10 * (1 - self.slo), 6))
