"""Questions about checkpoints, answered from what their headers say."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ckpt_observe.core.format.names import check_name
from ckpt_observe.core.model import CheckpointInfo
from ckpt_observe.errors import ConfigError

_MOST = 2**63 - 1
"""As large as databases take it."""
_HALF = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair: no checkpoint has any in its header, and not every store could be asked for it."""
_LEAST = {"min_step": -_MOST, "max_step": -_MOST, "min_size": 0, "max_size": 0, "limit": 0}


@dataclass(frozen=True, kw_only=True)
class Query:
    """What to find. Every part that is given must hold."""

    task: str | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    min_step: int | None = None
    max_step: int | None = None
    status: str | None = None
    error_class: str | None = None
    error_type: str | None = None
    """Class and type of the failure that a checkpoint tells of, in its metadata under `error`: `storage`, and `KeyError` or the like."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Entries that the metadata must have, or the configuration of a run in them."""
    tag: str | None = None
    min_size: int | None = None
    max_size: int | None = None
    """Stored bytes."""
    limit: int | None = None

    def __post_init__(self) -> None:
        for given in (self.since, self.until):
            if given is not None and (not isinstance(given, dt.datetime) or given.tzinfo is None):
                raise ConfigError(f"a time is a datetime with its zone, such as datetime.now(UTC), not {given!r:.80}")
        for name, least in _LEAST.items():
            number = getattr(self, name)
            if number is not None and (not isinstance(number, int) or not least <= number <= _MOST):
                raise ConfigError(f"{name} is a whole number from {least} to {_MOST}, not {number!r:.80}")
        for name in ("status", "error_class", "error_type", "tag"):
            text = getattr(self, name)
            if text is not None and (not isinstance(text, str) or _HALF.search(text)):
                raise ConfigError(f"{name} is a string without halves of surrogate pairs, not {text!r:.80}")
        if not isinstance(self.parameters, Mapping):
            raise ConfigError(f"parameters are names and values, not {self.parameters!r:.80}")
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
        configuration = metadata.get("configuration")  # where a runner puts the parameters of its run
        known = {**configuration, **metadata} if isinstance(configuration, dict) else metadata
        return all(name in known and known[name] == value for name, value in self.parameters.items())


def _within(value: Any, low: Any, high: Any) -> bool:
    if value is None:
        return low is None and high is None
    return (low is None or value >= low) and (high is None or value <= high)
