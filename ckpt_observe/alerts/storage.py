"""Alerts on stored checkpoints: whether they can be read back correctly, how they grow, and whether there is space for more."""

from __future__ import annotations

from ckpt_observe.alerts.alert import (
    BYTES,
    CRITICAL,
    DAMAGED,
    OPERATION,
    READ,
    STORED,
    TASK,
    TIMESTAMP,
    VALUE,
    WARNING,
    Alert,
    last_failure,
    number,
    series,
)
from ckpt_observe.alerts.site import DAY, Site, format_duration
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import metrics

_MEBIBYTE = 1 << 20


def alerts(site: Site) -> list[Alert]:
    """Return all alerts of this module."""
    return [corrupted(), altered(), restore_failing(site), growing(site), storage_filling(site)]


def corrupted() -> Alert:
    return Alert(
        "CheckpointCorrupted",
        CRITICAL,
        _since_last_verified(last_failure(DAMAGED)),
        "A stored checkpoint is damaged, and no checkpoint has been read back successfully since.",
        f"A {OPERATION} of {TASK} found a damaged checkpoint at {TIMESTAMP}.",
        inhibits=("CheckpointRestoreFailing",),
        traces=((names.OPERATION, OPERATION),),  # not the class of the error: a verify that finds damage has not failed
    )


def altered() -> Alert:
    return Alert(
        "CheckpointAltered",
        CRITICAL,
        _since_last_verified(series(metrics.LAST_ALTERED)),
        "A restored state differs from what was saved, and no state has been restored correctly since.",
        f"A {OPERATION} of {TASK} returned a state with missing keys or keys of another type at {TIMESTAMP}.",
        traces=((names.OPERATION, OPERATION),),
    )


def restore_failing(site: Site) -> Alert:
    """Ignores `not_found`: the first run of a task has no checkpoint yet, even if there was a failure and a success before it."""
    failure, success = last_failure(READ, 'error_class!="not_found"'), series(metrics.LAST_SUCCESS, READ)
    unresolved = f"{failure} > {success}\nor {failure} unless {success}"
    return Alert(
        "CheckpointRestoreFailing",
        CRITICAL,
        f"{series(metrics.CONSECUTIVE_FAILURES, READ)} > 0\nand ({unresolved}) > time() - {number(site.abandoned_after)}",
        "Reading a checkpoint failed and has not succeeded since.",
        f"The last {VALUE} attempts to {OPERATION} {TASK} failed.",
        traces=((names.OPERATION, OPERATION), ("error", "true")),
    )


def _since_last_verified(timestamp: str) -> str:
    """Return a PromQL condition: the timestamp is at most a week old, and no checkpoint of the task was verified after it."""
    verified = series(metrics.LAST_VERIFIED)
    return (
        f"({timestamp} > ignoring (operation) group_left () {verified}\n"
        f"or {timestamp} unless ignoring (operation) {verified}) > time() - {number(7 * DAY)}"
    )


def growing(site: Site) -> Alert:
    """Compares the mean size over `site.window` with that a day (or a window) earlier. Means below one mebibyte never alert."""
    offset = max(DAY, site.window)
    current = f"avg_over_time({series(metrics.LAST_SIZE, STORED, over=site.window)})"
    previous = f"avg_over_time({series(metrics.LAST_SIZE, STORED, over=site.window, offset=offset)})"
    return Alert(
        "CheckpointGrowing",
        WARNING,
        f"({current} > 2 * {previous}) > {_MEBIBYTE}",
        "Checkpoints of a task have doubled in size.",
        f"Checkpoints of {TASK} have {BYTES}, more than twice as much as {format_duration(offset)} ago.",
        dashboard="storage",
        traces=((names.OPERATION, "save"),),
    )


def storage_filling(site: Site) -> Alert:
    """Fires before a save fails: there is space for fewer than three more, or the trend over the window reaches zero within the baseline.

    The trend over the last quarter of the window must agree, because the first saves of a run use space until retention frees it.
    """
    free, size = series(metrics.FREE_BYTES), series(metrics.LAST_SIZE, STORED)
    long, short = (
        f"predict_linear({series(metrics.FREE_BYTES, over=window)}, {number(site.baseline)}) < 0"
        for window in (site.window, site.window / 4)
    )
    return Alert(
        "CheckpointStorageFilling",
        WARNING,
        f"{free} < ignoring (kind) 3 * {size}\nor {free} and {long} and {short} and {series(metrics.FREE_BYTES, offset=site.window)}",
        "The file system that a task saves to is almost full.",
        f"{BYTES} are free for {TASK}: not enough for three more saves, or used up within "
        f"{format_duration(site.baseline)} at the current rate.",
        hold=site.settle_time,
        dashboard="storage",
    )
