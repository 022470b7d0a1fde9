"""How often, how long, why not: rate, errors, durations, and what they cost."""

from __future__ import annotations

from ckpt_observe.dashboards import queries as ask
from ckpt_observe.dashboards import variables
from ckpt_observe.dashboards.kinds import FAILURES, OUTCOMES, bars, heatmap, lines, stacked
from ckpt_observe.dashboards.layouts import Dashboard, Row
from ckpt_observe.dashboards.panels import COUNT, Panel
from ckpt_observe.semconv import attributes as names

NOTHING = "no operation in this time"


def dashboard() -> Dashboard:
    return Dashboard(
        title="Operations",
        description="Rate, errors and durations of checkpoint operations. Percentiles and means are over the window chosen above: choose one that holds several operations.",
        span="6h",
        variables=[variables.task(), variables.operation(), variables.window()],
        rows=[
            Row("How often, and why not", _counts()),
            Row("How long", _durations()),
            Row("How much", _amounts()),
            Row("What it costs", _costs()),
        ],
    )


def _counts() -> list[Panel]:
    return [
        bars(
            "Operations",
            [ask.outcomes],
            COUNT,
            "Operations that ended in each step, by outcome. A gap where there should be bars: the program does not save, or is not observed (Bridge).",
            empty=NOTHING,
            colours=FAILURES,
        ),
        bars(
            "Errors by class",
            [ask.errors],
            COUNT,
            "Failed and interrupted operations. capacity: make room. integrity: restore an older one, check the disk. unavailable, timeout: the store's server. serialization: the state holds what cannot be saved. A click leads to their traces.",
            empty="no error in this time",
            traces=f"{names.ERROR_CLASS}=${{__field.labels.error_class}}",
        ),
        bars(
            "Task runs",
            [ask.task_runs],
            COUNT,
            "Runs of tasks that ended in each step, by outcome.",
            empty="no run ended in this time",
            colours=OUTCOMES,
        ),
        bars(
            "Work lost by restores",
            [ask.lost_work],
            "s",
            "How old the checkpoints were that restores and loads came back to: what was done since, was lost. Much: save more often.",
            empty="nothing restored in this time",
        ),
    ]


def _durations() -> list[Panel]:
    return [
        lines(
            "Duration",
            ask.percentiles,
            "s",
            "Half of the operations, 95 and 99 of a hundred take no longer. A dot is an operation: a click on it opens its trace. If p99 leaves p50 behind, compare the phases of a slow trace with those of a usual one.",
            empty=NOTHING,
            logarithmic=True,
        ),
        heatmap(
            "Durations",
            ask.durations,
            "s",
            "How many operations took how long. Two bands are two kinds of operations, or a store that is at times slow. A dot opens its trace.",
            empty=NOTHING,
        ),
        stacked(
            "Time by phase",
            [ask.phases],
            "s",
            "Mean time of an operation, by phase, of all tasks. serialize, compress: the program's CPU. write, read: the store. wait: another thread is behind.",
            empty=NOTHING,
        ),
        lines(
            "Last duration",
            [ask.last_durations],
            "s",
            "Of the last operation of each task that ended: also where there are too few for a percentile.",
            empty=NOTHING,
            logarithmic=True,
        ),
    ]


def _amounts() -> list[Panel]:
    return [
        lines(
            "Throughput",
            [ask.throughput],
            "Bps",
            "Stored bytes per second of a whole operation, mean. It falls while sizes stay: the store, or the CPU for compression, is slower than before.",
            empty="no sizes in this time",
            width=8,
        ),
        lines(
            "Size",
            [ask.sizes],
            "bytes",
            "Mean size of what was saved or loaded: the state in memory where known, serialized, and in the store.",
            empty="no sizes in this time",
            width=8,
        ),
        lines(
            "Compression ratio",
            [ask.ratio],
            "none",
            "serialized / stored, mean. Near 1: compression costs time and gains nothing; switch it off or choose another codec.",
            empty="no sizes in this time",
            width=8,
        ),
    ]


def _costs() -> list[Panel]:
    return [
        stacked(
            "CPU by phase",
            [ask.cpu],
            "s",
            "CPU seconds of the calling threads in the last window. Phases under 0.1 ms are not counted.",
            empty="nothing measurable in this time",
            width=8,
        ),
        lines(
            "Disk",
            [ask.disk],
            "bytes",
            "Bytes that operations made the disk read and write in the last window. More written than stored: the store writes things twice.",
            empty="nothing measurable in this time",
            width=8,
        ),
        lines(
            "Peak memory",
            [ask.memory],
            "bytes",
            "Highest resident memory of the process, as its last operation saw it. A step up at each save: the state is copied to be saved.",
            empty="not known",
            width=8,
        ),
    ]
