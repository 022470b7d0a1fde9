"""The site that alerts are made for: its save interval and its objective, and the time windows derived from them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ckpt_observe.errors import ConfigError

MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 86400.0

SETTLE_PART: Final = 6
"""A condition that may clear by itself is given one part in this many of an interval."""

_UNITS: Final = {"w": 7 * DAY, "d": DAY, "h": HOUR, "m": MINUTE, "s": 1.0, "ms": 0.001}
_DURATION: Final = re.compile(r"(\d+(ms|[wdhms]))+")


def parse_duration(text: str) -> float:
    """Return the seconds of a duration in Prometheus notation: `90s`, `30m`, `1h30m`, `1d`. ConfigError if it is invalid."""
    if not _DURATION.fullmatch(text):
        raise ConfigError(f"{text!r} is not a duration: use a value such as 90s, 30m, 1h30m or 1d")
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d+)(ms|[wdhms])", text))


def format_duration(seconds: float) -> str:
    """Return a number of seconds in Prometheus notation, such as `1h30m`; `1ms` if it is less than that."""
    rest, parts = max(1, round(seconds * 1000)), []
    for unit in ("d", "h", "m", "s", "ms"):
        size = round(_UNITS[unit] * 1000)
        if rest >= size:
            parts.append(f"{rest // size}{unit}")
            rest %= size
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class Site:
    """The installation that alerts are made for. Times are in seconds."""

    interval: float = 30 * MINUTE
    """Time between two saves; the shortest one if tasks differ. The interval of each task, declared or learnt, comes from its metrics."""
    slo: float = 0.99
    """Fraction of saves that should succeed."""
    batch: bool = False
    """Whether metrics exist only while a job runs. If so, there are no alerts on missing metrics."""
    runbook_url: str = ""
    """URL of the page that shows the runbook. Empty: links are relative to the directory of the rules."""
    grafana_url: str = ""
    """URL of Grafana. Alerts link to a dashboard there, unless it is empty."""
    jaeger_url: str = ""
    """URL of Jaeger's page. Alerts link to a search for traces there, unless it is empty."""

    def __post_init__(self) -> None:
        if not 0 < self.interval <= 31 * DAY:
            raise ConfigError(f"--interval is {self.interval:g} s, but must be above zero and at most 31 days, such as 30m")
        if not 0 < self.slo < 1:
            raise ConfigError(
                f"--slo is {self.slo:g}, but must be between 0 and 1: the fraction of saves that should succeed, such as 0.99"
            )
        for option, url in (("--runbook-url", self.runbook_url), ("--grafana-url", self.grafana_url), ("--jaeger-url", self.jaeger_url)):
            _check_url(option, url)

    @property
    def settle_time(self) -> float:
        """How long a condition that may clear by itself must hold before the alert fires."""
        return self.interval / SETTLE_PART

    @property
    def window(self) -> float:
        """Window in which failures are counted: a dozen save intervals, at most a week."""
        return min(12 * self.interval, 7 * DAY)

    @property
    def baseline(self) -> float:
        """Length of the period before `window` with which it is compared, and how far ahead free space is predicted."""
        return min(8 * self.window, 14 * DAY)

    @property
    def abandoned_after(self) -> float:
        """A task with no attempt for this long counts as abandoned and stops alerting: 96 intervals, at most a week."""
        return min(96 * self.interval, 7 * DAY)

    @property
    def failure_ratio(self) -> float:
        """Ratio of failed saves in `window` from which on an alert fires: ten times what the objective allows, at most one half."""
        return min(0.5, round(10 * (1 - self.slo), 6))


def _check_url(option: str, url: str) -> None:
    """ConfigError if the address is not absolute, or if nothing can be appended to it."""
    if not url:
        return
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"{option} is {url!r}, but must be an absolute address without ? and #, such as https://wiki.example/checkpoints")
