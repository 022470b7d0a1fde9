"""Alerts on getting checkpoints back: are they whole, do they load, is it what was saved."""

from __future__ import annotations

from ckpt_observe.alerts.alert import AT, CRITICAL, OPERATION, TASK, VALUE, Alert
from ckpt_observe.alerts.plan import DAY, Plan
from ckpt_observe.alerts.promql import DAMAGED, READ, number, series, told
from ckpt_observe.semconv import metrics


def alerts(plan: Plan) -> list[Alert]:
    return [corrupted(), altered(), restore_failing(plan)]


def corrupted() -> Alert:
    return Alert(
        "CheckpointCorrupted",
        CRITICAL,
        _since_last_verified(told(DAMAGED)),
        "A stored checkpoint is damaged, and none has been read back whole since.",
        f"A {OPERATION} of {TASK} found damage {AT}.",
        hides=("CheckpointRestoreFailing",),
    )


def altered() -> Alert:
    return Alert(
        "CheckpointAltered",
        CRITICAL,
        _since_last_verified(series(metrics.LAST_ALTERED)),
        "A state came back other than it was saved, and none has come back right since.",
        f"A {OPERATION} of {TASK} brought back keys that are lost or of another type {AT}.",
    )


def restore_failing(plan: Plan) -> Alert:
    """That there is no checkpoint yet is how every first run begins, also one that comes after a failure and a success."""
    other, worked = told(READ, 'error_class!="not_found"'), series(metrics.LAST_SUCCESS, READ)
    since = f"{other} > {worked}\nor {other} unless {worked}"
    return Alert(
        "CheckpointRestoreFailing",
        CRITICAL,
        f"{series(metrics.CONSECUTIVE_FAILURES, READ)} > 0\nand ({since}) > time() - {number(plan.recent)}",
        "Reading a checkpoint back failed and has not succeeded since.",
        f"The last {VALUE} attempts to {OPERATION} {TASK} failed.",
    )


def _since_last_verified(moment: str) -> str:
    """What was found after the last checkpoint that was read back whole. Forgotten after a week."""
    verified = series(metrics.LAST_VERIFIED)
    return (
        f"({moment} > ignoring (operation) group_left () {verified}\n"
        f"or {moment} unless ignoring (operation) {verified}) > time() - {number(7 * DAY)}"
    )
