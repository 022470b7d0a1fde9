"""The query by which checkpoints are found: conditions on their headers."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ckpt_observe.core.format.names import check_name
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.errors import ConfigError

_MAX_INTEGER = 2**63 - 1
"""The largest integer that databases accept."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""An unpaired surrogate. Headers never contain one, and not every store accepts one in a query."""
_MINIMUM = {"min_step": -_MAX_INTEGER, "max_step": -_MAX_INTEGER, "min_size": 0, "max_size": 0, "limit": 0}


@dataclass(frozen=True, kw_only=True)
class Query:
    """Conditions for checkpoints. All that are not None must match; minimum, maximum, `since` and `until` are inclusive."""

    task: str | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    min_step: int | None = None
    max_step: int | None = None
    status: str | None = None
    error_class: str | None = None
    error_type: str | None = None
    """`error_class` and `error_type`: the failure recorded under `error` in the metadata, such as `storage` and `OSError`."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Entries that the metadata must contain, at its top level or under `configuration`."""
    tag: str | None = None
    min_size: int | None = None
    max_size: int | None = None
    """`min_size` and `max_size`: stored bytes, including the header."""
    limit: int | None = None
    """Maximum number of results, the newest first. `matches` ignores it."""

    def __post_init__(self) -> None:
        for time in (self.since, self.until):
            if time is not None and (not isinstance(time, dt.datetime) or time.tzinfo is None):
                raise ConfigError(f"`since` and `until` must be datetimes with a time zone, such as datetime.now(UTC), not {time!r:.80}")
        for name, minimum in _MINIMUM.items():
            number = getattr(self, name)
            if number is not None and (not isinstance(number, int) or not minimum <= number <= _MAX_INTEGER):
                raise ConfigError(f"`{name}` must be an integer from {minimum} to {_MAX_INTEGER}, not {number!r:.80}")
        for name in ("status", "error_class", "error_type", "tag"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or _SURROGATE.search(text)):
                raise ConfigError(f"`{name}` must be a string without unpaired surrogates, not {text!r:.80}")
        if not isinstance(self.parameters, Mapping):
            raise ConfigError(f"`parameters` must be a mapping, not {self.parameters!r:.80}")
        if self.task is not None:
            check_name(self.task, "task")

    def matches(self, info: CheckpointInfo) -> bool:
        return (
            self.task in (None, info.task)
            and self.status in (None, info.status)
            and (self.tag is None or self.tag in info.tags)
            and _within(info.created, self.since, self.until)
            and _within(info.step, self.min_step, self.max_step)
            and _within(info.stored_size, self.min_size, self.max_size)
            and self._metadata_matches(info.metadata)
        )

    def _metadata_matches(self, metadata: dict[str, Any]) -> bool:
        if self.error_class is not None or self.error_type is not None:
            error = metadata.get("error")
            if not isinstance(error, dict):
                return False
            if self.error_class not in (None, error.get("class")) or self.error_type not in (None, error.get("type")):
                return False
        configuration = metadata.get("configuration")  # a runner stores its parameters here
        entries = {**configuration, **metadata} if isinstance(configuration, dict) else metadata
        return all(name in entries and entries[name] == value for name, value in self.parameters.items())


def _within(value: Any, low: Any, high: Any) -> bool:
    if value is None:
        return low is None and high is None
    return (low is None or value >= low) and (high is None or value <= high)
