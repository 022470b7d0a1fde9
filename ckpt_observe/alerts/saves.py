"""Alerts on saves: whether they are made, succeed, end, and take as long as usual."""

from __future__ import annotations

from typing import Final, NamedTuple

from ckpt_observe.alerts.alert import (
    COMPLETED,
    CRITICAL,
    DURATION,
    FAILED,
    INTERRUPTED,
    OF_OPERATION,
    OPERATION,
    PERCENTAGE,
    SAVE,
    TASK,
    TIMESTAMP,
    VALUE,
    WARNING,
    Alert,
    is_attempted,
    last_failure,
    longer_than_interval,
    number,
    operation_count,
    series,
)
from ckpt_observe.alerts.site import DAY, HOUR, MINUTE, SETTLE_PART, Site, format_duration
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import metrics

MIN_FAILURES: Final = 3
"""Failures from which on alerts fire. Fewer may be an accident."""
_STALE_HOLD: Final = MINUTE
"""Seconds for which a task must be late, whatever its interval: enough for a few scrapes."""
_SAVES: Final = ((names.OPERATION, "save"),)
_FAILED_SAVES: Final = (*_SAVES, ("error", "true"))
"""Jaeger gives spans of failed operations the tag `error`."""


def alerts(site: Site) -> list[Alert]:
    """Return all alerts of this module."""
    return [
        never_succeeded(site),
        failing(site),
        stale(site),
        failure_ratio(site),
        *budget_burn(site),
        stuck(site),
        interrupted(site),
        slow(site),
    ]


def never_succeeded(site: Site) -> Alert:
    age, last = f"time() - {series(metrics.FIRST_ATTEMPT, SAVE)}", series(metrics.LAST_SUCCESS, SAVE)
    return Alert(
        "CheckpointNeverSucceeded",
        CRITICAL,
        f"{longer_than_interval(age, site)}\nunless {last}\nand {is_attempted(SAVE, site)}",
        "No save of a task has ever succeeded.",
        f"Saves of {TASK} have been attempted for {DURATION}; none has succeeded.",
        inhibits=("CheckpointFailing", "CheckpointStale", "CheckpointFailureRatio", "CheckpointErrorBudgetBurn"),
        traces=_FAILED_SAVES,
    )


def failing(site: Site) -> Alert:
    return Alert(
        "CheckpointFailing",
        CRITICAL,
        f"{series(metrics.CONSECUTIVE_FAILURES, SAVE)} >= {MIN_FAILURES}\nand {is_attempted(SAVE, site)}",
        "Several saves of a task in a row have failed.",
        f"The last {VALUE} saves of {TASK} failed.",
        inhibits=("CheckpointStale", "CheckpointFailureRatio", "CheckpointErrorBudgetBurn"),
        traces=_FAILED_SAVES,
    )


def stale(site: Site) -> Alert:
    """Fires if a running task has not saved for LATE_AFTER of its own intervals, whatever the interval of the site.

    The age counts from the last successful save or from the start of the run, whichever is later, so that a new run does not inherit an
    old age. One skipped or failed save doubles a gap, and saves have jitter; neither should alert.

    It is the age at the time of the sample: metrics that are pushed once a minute know nothing of the saves since the last push. The alert
    waits for a few samples, because a process that starts to deliver reports old values first.
    """
    save_age, run_age = _age_at_sample(metrics.LAST_SUCCESS, SAVE), _age_at_sample(metrics.TASKS_OLDEST_START)
    return Alert(
        "CheckpointStale",
        CRITICAL,
        f"({save_age} <= ignoring (operation) ({run_age}) or {run_age})\n  > {metrics.LATE_AFTER} * {series(metrics.EXPECTED_INTERVAL)}",
        f"A task is running and has not saved for more than {metrics.LATE_AFTER:g} of its save intervals.",
        f"If {TASK} died now, {DURATION} of work would be lost.",
        hold=min(site.settle_time, _STALE_HOLD),
        traces=_SAVES,
    )


def _age_at_sample(spec: metrics.MetricSpec, *matchers: str) -> str:
    """Return the age of a point in time when its sample was taken."""
    selector = series(spec, *matchers)
    return f"timestamp({selector}) - {selector}"


def failure_ratio(site: Site) -> Alert:
    failures, saves = operation_count(SAVE, FAILED, over=site.window), operation_count(SAVE, COMPLETED, over=site.window)
    return Alert(
        "CheckpointFailureRatio",
        WARNING,
        f"{failures}\n  / {saves}\n  > {number(site.failure_ratio)}\nand {failures} > {MIN_FAILURES - 0.5}",
        "Too many recent saves of a task failed.",
        f"{PERCENTAGE} of the saves of {TASK} failed in the last {format_duration(site.window)}.",
        traces=_FAILED_SAVES,
    )


class _BurnRate(NamedTuple):
    """Failures `factor` times faster than allowed, over a long window and still over a short one (table from the Google SRE workbook)."""

    factor: float
    long: float
    short: float
    severity: str


_BURN_RATES: Final = (
    _BurnRate(14.4, HOUR, 5 * MINUTE, CRITICAL),
    _BurnRate(6, 6 * HOUR, 30 * MINUTE, CRITICAL),
    _BurnRate(3, DAY, 2 * HOUR, WARNING),
    _BurnRate(1, 3 * DAY, 6 * HOUR, WARNING),
)


def budget_burn(site: Site) -> list[Alert]:
    """Return the burn-rate alerts that can work at this site.

    The short window must have at least three expected saves: with fewer, the ratio is mostly 0/0 and the alert flaps. Alerts whose limit
    would be 100 % or more are left out, because they could never fire.
    """
    return [
        _budget_burn(site, rate) for rate in _BURN_RATES if rate.short >= MIN_FAILURES * site.interval and rate.factor * (1 - site.slo) < 1
    ]


def _budget_burn(site: Site, rate: _BurnRate) -> Alert:
    limit = number(rate.factor * (1 - site.slo))
    failures = operation_count(SAVE, FAILED, over=rate.long)
    long = f"{failures}\n  / {operation_count(SAVE, COMPLETED, over=rate.long)}\n  > {limit}"
    short = f"{operation_count(SAVE, FAILED, over=rate.short)}\n  / {operation_count(SAVE, COMPLETED, over=rate.short)}\n  > {limit}"
    return Alert(
        "CheckpointErrorBudgetBurn",
        rate.severity,
        f"{long}\nand {short}\nand {failures} > {MIN_FAILURES - 0.5}",
        "Saves of a task fail faster than the objective allows.",
        f"{PERCENTAGE} of the saves of {TASK} failed in the last {format_duration(rate.long)}; "
        f"the objective allows {(1 - site.slo) * 100:g}%.",
        labels={"window": format_duration(rate.long)},
        traces=_FAILED_SAVES,
    )


def stuck(site: Site) -> Alert:
    """Fires if an operation takes ten times its longest recent duration and a part of the save interval, or an interval if it is the first.

    Without the second condition, a save that usually takes milliseconds would alert on a busy machine.
    """
    matcher = 'operation=~"save|load|restore"'
    age = _age_at_sample(metrics.OLDEST_START, matcher)
    longest = f"max_over_time({series(metrics.LAST_DURATION, matcher, over=site.abandoned_after)})"
    return Alert(
        "CheckpointStuck",
        WARNING,
        f"{longer_than_interval(f'({age} > 10 * {longest})', site, SETTLE_PART)}\nor ({longer_than_interval(age, site)} unless {longest})",
        "A checkpoint operation is taking far longer than usual.",
        f"A {OPERATION} of {TASK} has been running for {DURATION}.",
    )


def interrupted(site: Site) -> Alert:
    """Fires for `site.window` after a death was detected, which may be a day after the death itself."""
    return Alert(
        "CheckpointInterrupted",
        WARNING,
        f"{last_failure(INTERRUPTED)} > time() - {number(site.window)}",
        "A process died during a checkpoint operation.",
        f"A process died during a {OPERATION} of {TASK}; detected at {TIMESTAMP}.",
        traces=((names.OUTCOME, "interrupted"),),
    )


def slow(site: Site) -> Alert:
    """Compares the mean duration of at least three saves with that of at least ten saves before. A mean below one second never alerts."""
    window, baseline = site.window, site.baseline
    mean = f"{_duration('_sum', window)} / {_duration('_count', window)}"
    usual = f"({_duration('_sum', baseline, window)} / {_duration('_count', baseline, window)})"
    enough = f"{_duration('_count', window)} > 2.5\nand {_duration('_count', baseline, window)} > 9.5"
    return Alert(
        "CheckpointSlow",
        WARNING,
        f"({mean}\n  > 3 * {usual}) > 1\nand {enough}",
        "Saves of a task take three times as long as before.",
        f"A save of {TASK} takes {DURATION} on average.",
        hold=site.settle_time,
        dashboard="operations",
        links_by=OF_OPERATION,
        traces=_SAVES,
    )


def _duration(part: str, over: float, offset: float = 0.0) -> str:
    selector = series(metrics.OPERATION_DURATION, SAVE, part=part, over=over, offset=offset)
    return f"sum without (system, store) (increase({selector}))"
