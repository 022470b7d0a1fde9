"""One alert."""

from __future__ import annotations

from typing import Final, NamedTuple

CRITICAL: Final = "critical"
"""Somebody is woken: work is being lost, or could not be got back."""
WARNING: Final = "warning"
"""Somebody looks at it in the morning."""
NONE: Final = "none"
"""Nobody: it only shows that alerts arrive."""

# What a description takes from the alert that fires.
TASK: Final = "task {{ $labels.task }} on {{ $labels.instance }}"
OPERATION: Final = "{{ $labels.operation }}"
VALUE: Final = "{{ $value | humanize }}"
SHARE: Final = "{{ $value | humanizePercentage }}"
AGE: Final = "{{ $value | humanizeDuration }}"
AT: Final = "{{ $value | humanizeTimestamp }}"
BYTES: Final = "{{ $value | humanize1024 }}B"


class Alert(NamedTuple):
    """One alert. Its heading in the runbook is its name."""

    name: str
    severity: str
    expr: str
    summary: str
    """One sentence, the same for every task, so that it groups well."""
    description: str
    """With this task's own names and numbers."""
    hold: float = 0.0
    """Seconds for which it must be true."""
    hides: tuple[str, ...] = ()
    """Alerts of the same task that only say what this one says better."""
    labels: dict[str, str] = {}  # noqa: RUF012 - never changed
