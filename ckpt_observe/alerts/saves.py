"""Alerts on saves: are they made, do they succeed, do they end."""

from __future__ import annotations

from typing import Final, NamedTuple

from ckpt_observe.alerts.alert import AGE, AT, CRITICAL, OPERATION, SHARE, TASK, VALUE, WARNING, Alert
from ckpt_observe.alerts.plan import DAY, HOUR, MINUTE, Plan, duration
from ckpt_observe.alerts.promql import FAILED, INTERRUPTED, SAVE, TRIED, number, operations, series, told, tried_lately
from ckpt_observe.semconv import metrics

ROW: Final = 3
"""Failures that are no accident any more."""


def alerts(plan: Plan) -> list[Alert]:
    return [never_succeeded(plan), failing(plan), stale(plan), failure_ratio(plan), *budget_burn(plan), stuck(plan), interrupted(plan)]


def never_succeeded(plan: Plan) -> Alert:
    first, last = series(metrics.FIRST_ATTEMPT, SAVE), series(metrics.LAST_SUCCESS, SAVE)
    return Alert(
        "CheckpointNeverSucceeded",
        CRITICAL,
        f"time() - {first} > {number(plan.interval)}\nunless {last}\nand {tried_lately(SAVE, plan.recent)}",
        "A task has never made a checkpoint, though it tried.",
        f"Saves of {TASK} have been tried for {AGE} without one success.",
        hides=("CheckpointFailing", "CheckpointStale", "CheckpointFailureRatio", "CheckpointErrorBudgetBurn"),
    )


def failing(plan: Plan) -> Alert:
    return Alert(
        "CheckpointFailing",
        CRITICAL,
        f"{series(metrics.CONSECUTIVE_FAILURES, SAVE)} >= {ROW}\nand {tried_lately(SAVE, plan.recent)}",
        "Saves of a task fail one after the other.",
        f"The last {VALUE} saves of {TASK} failed.",
        hides=("CheckpointStale", "CheckpointFailureRatio", "CheckpointErrorBudgetBurn"),
    )


def stale(plan: Plan) -> Alert:
    """The age counts from the last save or from the start of the run, whichever is later: yesterday's run is not today's delay.

    One save that is skipped or fails doubles a gap, and saves are not on the minute: that is no alarm yet.
    """
    saved, began = series(metrics.LAST_SUCCESS, SAVE), series(metrics.TASKS_OLDEST_START)
    return Alert(
        "CheckpointStale",
        CRITICAL,
        f"time() - ({saved} >= ignoring (operation) {began} or {began})\n"
        f"  > {metrics.LATE_AFTER} * {series(metrics.EXPECTED_INTERVAL)}\n  > {number(plan.interval)}",
        "A task is running and its last checkpoint is older than two and a half of its intervals.",
        f"If {TASK} died now, {AGE} of work would be lost.",
        hold=plan.settle,
    )


def failure_ratio(plan: Plan) -> Alert:
    failed, tried = operations(SAVE, FAILED, over=plan.window), operations(SAVE, TRIED, over=plan.window)
    return Alert(
        "CheckpointFailureRatio",
        WARNING,
        f"{failed}\n  / {tried}\n  > {number(plan.ratio)}\nand {failed} > {ROW - 0.5}",
        "Too many of the last saves of a task failed.",
        f"{SHARE} of the saves of {TASK} failed within {duration(plan.window)}.",
    )


class _Burn(NamedTuple):
    """So many times faster than allowed, over a long window and still over a short one (the SRE workbook's table)."""

    factor: float
    long: float
    short: float
    severity: str


_BURNS: Final = (
    _Burn(14.4, HOUR, 5 * MINUTE, CRITICAL),
    _Burn(6, 6 * HOUR, 30 * MINUTE, CRITICAL),
    _Burn(3, DAY, 2 * HOUR, WARNING),
    _Burn(1, 3 * DAY, 6 * HOUR, WARNING),
)


def budget_burn(plan: Plan) -> list[Alert]:
    """Only windows in which at least three saves are expected: in a shorter one the ratio is mostly 0/0, and the alert flaps or sleeps."""
    return [_burn(plan, each) for each in _BURNS if each.short >= ROW * plan.interval and each.factor * (1 - plan.slo) < 1]


def _burn(plan: Plan, burn: _Burn) -> Alert:
    limit = number(burn.factor * (1 - plan.slo))
    failed = operations(SAVE, FAILED, over=burn.long)
    long = f"{failed}\n  / {operations(SAVE, TRIED, over=burn.long)}\n  > {limit}"
    short = f"{operations(SAVE, FAILED, over=burn.short)}\n  / {operations(SAVE, TRIED, over=burn.short)}\n  > {limit}"
    return Alert(
        "CheckpointErrorBudgetBurn",
        burn.severity,
        f"{long}\nand {short}\nand {failed} > {ROW - 0.5}",
        "Saves of a task fail faster than its objective allows.",
        f"{SHARE} of the saves of {TASK} failed within {duration(burn.long)}; {(1 - plan.slo) * 100:g}% may.",
        labels={"window": duration(burn.long)},
    )


def stuck(plan: Plan) -> Alert:
    """Against its own longest time lately; an operation that has none yet, against the interval."""
    matcher = 'operation=~"save|load|restore"'
    age = f"time() - {series(metrics.OLDEST_START, matcher)}"
    longest = f"max_over_time({series(metrics.LAST_DURATION, matcher, over=plan.recent)})"
    return Alert(
        "CheckpointStuck",
        WARNING,
        f"({age} > 10 * {longest}) > {number(plan.settle)}\nor ({age} > {number(plan.interval)} unless {longest})",
        "A checkpoint operation runs for far longer than it ever did.",
        f"A {OPERATION} of {TASK} has been running for {AGE}.",
    )


def interrupted(plan: Plan) -> Alert:
    """By the moment at which the death was found, which may be a day after it."""
    return Alert(
        "CheckpointInterrupted",
        WARNING,
        f"{told(INTERRUPTED)} > time() - {number(plan.window)}",
        "A process died in the middle of a checkpoint operation.",
        f"A {OPERATION} of {TASK} was cut short; found {AT}.",
    )
