"""Alerts on what changes slowly: sizes, room and times."""

from __future__ import annotations

from ckpt_observe.alerts.alert import AGE, BYTES, TASK, WARNING, Alert
from ckpt_observe.alerts.plan import DAY, Plan, duration
from ckpt_observe.alerts.promql import SAVE, STORED, number, series
from ckpt_observe.semconv import metrics

_MEBIBYTE = 1 << 20


def alerts(plan: Plan) -> list[Alert]:
    return [growing(plan), storage_filling(plan), slow(plan)]


def growing(plan: Plan) -> Alert:
    """Means over the window, because runs of one task differ. Below a mebibyte nobody minds."""
    ago = max(DAY, plan.window)
    now = f"avg_over_time({series(metrics.LAST_SIZE, STORED, over=plan.window)})"
    before = f"avg_over_time({series(metrics.LAST_SIZE, STORED, over=plan.window, before=ago)})"
    return Alert(
        "CheckpointGrowing",
        WARNING,
        f"({now} > 2 * {before}) > {_MEBIBYTE}",
        "Checkpoints of a task have doubled in size.",
        f"Checkpoints of {TASK} have {BYTES}, more than twice as much as {duration(ago)} ago.",
    )


def storage_filling(plan: Plan) -> Alert:
    """Before a save fails: room for few more, or a trend over a dozen saves that leaves none.

    The last of them must go the same way: the first ones of a run take room until retention gives it back.
    """
    free, size = series(metrics.FREE_BYTES), series(metrics.LAST_SIZE, STORED)
    long, short = (
        f"predict_linear({series(metrics.FREE_BYTES, over=over)}, {number(plan.past)}) < 0" for over in (plan.window, plan.window / 4)
    )
    return Alert(
        "CheckpointStorageFilling",
        WARNING,
        f"{free} < ignoring (kind) 3 * {size}\nor {free} and {long} and {short} and {series(metrics.FREE_BYTES, before=plan.window)}",
        "The file system that a task saves to is nearly full.",
        f"{BYTES} are free for {TASK}: too little for three more saves, or gone in {duration(plan.past)} if this goes on.",
        hold=plan.settle,
    )


def slow(plan: Plan) -> Alert:
    """A mean of at least three saves against that of at least ten before them; below a second nobody minds."""
    mean = f"{_sum('_sum', plan.window)} / {_sum('_count', plan.window)}"
    usual = f"({_sum('_sum', plan.past, plan.window)} / {_sum('_count', plan.past, plan.window)})"
    return Alert(
        "CheckpointSlow",
        WARNING,
        f"({mean}\n  > 3 * {usual}) > 1\nand {_sum('_count', plan.window)} > 2.5\nand {_sum('_count', plan.past, plan.window)} > 9.5",
        "Saves of a task take three times as long as they used to.",
        f"A save of {TASK} takes {AGE} on average.",
        hold=plan.settle,
    )


def _sum(part: str, over: float, before: float = 0.0) -> str:
    return f"sum without (system, store) (increase({series(metrics.OPERATION_DURATION, SAVE, part=part, over=over, before=before)}))"
