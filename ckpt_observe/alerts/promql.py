"""Pieces of expressions. What labels a site adds (cluster, region) pass through: nothing is matched `on` a list of labels."""

from __future__ import annotations

from typing import Final

from ckpt_observe.alerts.plan import duration
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import MetricSpec

SAVE: Final = 'operation="save"'
READ: Final = 'operation=~"load|restore"'
FAILED: Final = 'outcome=~"error|interrupted"'
TRIED: Final = 'outcome=~"ok|error|interrupted"'
"""What was skipped or stopped on purpose neither worked nor failed."""
STORED: Final = 'kind="stored"'
INTERRUPTED: Final = 'error_class="interrupted"'
DAMAGED: Final = 'error_class="integrity"'


def series(spec: MetricSpec, *matchers: str, part: str = "", over: float = 0.0, before: float = 0.0) -> str:
    """A metric: those series that match, a `_sum` or `_count` of it, over the last so many seconds, as of so many seconds before."""
    chosen = f"{{{', '.join(matchers)}}}" if matchers else ""
    span = f"[{duration(over)}]" if over else ""
    return spec.prometheus_name + part + chosen + span + (f" offset {duration(before)}" if before else "")


def operations(*matchers: str, over: float) -> str:
    """How many operations ended so, by operation and task."""
    return f"sum without (outcome, error_class, system, store) (increase({series(metrics.OPERATIONS, *matchers, over=over)}))"


def told(*matchers: str) -> str:
    """When such a failure was last told, by operation and task."""
    return f"max without (error_class) ({series(metrics.LAST_FAILURE, *matchers)})"


def tried_lately(matcher: str, within: float) -> str:
    return f"time() - {series(metrics.LAST_ATTEMPT, matcher)} < {number(within)}"


def number(value: float) -> str:
    """Without an exponent, which nobody reads."""
    return f"{value:.6f}".rstrip("0").rstrip(".")
