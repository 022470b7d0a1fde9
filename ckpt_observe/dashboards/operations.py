"""The Operations dashboard: counts, errors, durations and resource usage of checkpoint operations."""

from __future__ import annotations

from ckpt_observe.dashboards import queries
from ckpt_observe.dashboards.layout import Dashboard, Row, operation_variable, task_variable, window_variable
from ckpt_observe.dashboards.panels import COUNT, FAILURES, OUTCOMES, Panel, bars, heatmap, lines, stacked_areas
from ckpt_observe.semconv import attributes as names

NO_OPERATION = "no operation in this time range"
NO_ASYNC_SAVE = "no async save in this time range"
NO_SIZES = "no sizes in this time range"
NOT_MEASURED = "nothing measured in this time range"


def dashboard() -> Dashboard:
    return Dashboard(
        title="Operations",
        description="Counts, errors and durations of checkpoint operations. Percentiles and means are over the window chosen above; choose one that contains several operations.",
        span="6h",
        variables=[task_variable(), operation_variable(), window_variable()],
        rows=[
            Row("Operations and errors", _counts()),
            Row("Duration", _durations()),
            Row("Async saves", _async_saves()),
            Row("Distributed saves and work at risk", _distributed_saves()),
            Row("Size and throughput", _sizes()),
            Row("Resource usage", _resources()),
        ],
    )


def _counts() -> list[Panel]:
    return [
        bars(
            "Operations by outcome",
            [queries.outcomes],
            COUNT,
            "Finished operations in each step, by outcome. If bars are missing, the program does not save, or is not observed (see Observability health).",
            empty=NO_OPERATION,
            colours=FAILURES,
        ),
        bars(
            "Errors by class",
            [queries.errors],
            COUNT,
            "Failed and interrupted operations. capacity: free disk space. integrity: restore an older checkpoint and check the disk. unavailable, timeout: check the server of the store. serialization: the state contains something that cannot be saved. Click to open their traces.",
            empty="no error in this time range",
            traces=f"{names.ERROR_CLASS}=${{__field.labels.error_class}}",
        ),
        bars(
            "Task runs by outcome",
            [queries.task_runs],
            COUNT,
            "Finished task runs in each step, by outcome.",
            empty="no run ended in this time range",
            colours=OUTCOMES,
        ),
        bars(
            "Work lost by restores",
            [queries.lost_work],
            "s",
            "Age of the checkpoints that restores and loads returned to: the work since then was lost. If this is a lot, save more often.",
            empty="no restore in this time range",
        ),
    ]


def _durations() -> list[Panel]:
    return [
        lines(
            "Duration percentiles",
            queries.duration_percentiles,
            "s",
            "50, 95 and 99 % of the operations take no longer than this. A dot is an operation; click it to open its trace. If p99 is far above p50, compare the phases of a slow trace with those of a usual one.",
            empty=NO_OPERATION,
            logarithmic=True,
        ),
        heatmap(
            "Duration heatmap",
            queries.duration_heatmap,
            "s",
            "Number of operations by duration. Two bands are two kinds of operations, or a store that is sometimes slow. Click a dot to open its trace.",
            empty=NO_OPERATION,
        ),
        stacked_areas(
            "Mean time by phase",
            [queries.phase_times],
            "s",
            "Mean time of each phase in an operation, over all tasks. serialize, compress: CPU of the program. write, read: the store. wait: another thread is behind.",
            empty=NO_OPERATION,
        ),
        lines(
            "Last duration by task",
            [queries.last_duration],
            "s",
            "Duration of the last finished operation of each task. Useful if there are too few operations for percentiles.",
            empty=NO_OPERATION,
            logarithmic=True,
        ),
    ]


def _async_saves() -> list[Panel]:
    return [
        lines(
            "Blocked time of async saves",
            queries.async_times,
            "s",
            "95 % of the async saves hold up the program no longer than this, and let it change the state after this time. If blocked is far above released, the program waits for the previous save.",
            empty=NO_ASYNC_SAVE,
            width=8,
            logarithmic=True,
        ),
        lines(
            "Time from released to durable",
            [queries.async_pending],
            "s",
            "95 % of the async saves are durable this long after the program went on. A program that dies in this time loses the save. If it grows, the store is too slow, or saves queue up.",
            empty=NO_ASYNC_SAVE,
            width=8,
            logarithmic=True,
        ),
        lines(
            "Time until durable",
            [queries.async_durable],
            "s",
            "95 % of the async saves are durable after this time, blocked time included. If it is longer than the interval between saves, the store is too slow.",
            empty=NO_ASYNC_SAVE,
            width=8,
            logarithmic=True,
        ),
    ]


def _distributed_saves() -> list[Panel]:
    return [
        bars(
            "Saves with a straggler",
            [queries.stragglers],
            COUNT,
            "Distributed saves in which one rank took at least 1 s and 20 % longer than the median of the others, by the phase in which it was slow. The span of the save names the rank. write: its disk or network. stage: its memory or GPU. plan: its CPU. Click to open the traces.",
            empty="no straggler in this time range",
            width=8,
            traces=f"{names.STRAGGLER_PHASE}=${{__field.labels.phase}}",
        ),
        bars(
            "Time waiting for stragglers",
            [queries.straggler_delay],
            "s",
            "How much longer than the median of the others the slowest rank took, in total. All ranks wait for it at each synchronous save.",
            empty="no straggler in this time range",
            width=8,
        ),
        lines(
            "Work at risk by task",
            [queries.work_at_risk_by_task],
            "s",
            "The work that would be lost if the task crashed now: the time since its last durable save, or since its first attempt if no save was good. Only running tasks. Overview shows the worst task and whether its save is late.",
            empty="no task is running",
            width=8,
        ),
    ]


def _sizes() -> list[Panel]:
    return [
        lines(
            "Throughput",
            [queries.throughput],
            "Bps",
            "Mean stored bytes per second of whole operations. If it falls while sizes stay the same, the store, or the CPU for compression, has become slower.",
            empty=NO_SIZES,
            width=8,
        ),
        lines(
            "Checkpoint size",
            [queries.mean_size],
            "bytes",
            "Mean size of saved and loaded checkpoints: the state in memory if known, serialized, and in the store.",
            empty=NO_SIZES,
            width=8,
        ),
        lines(
            "Compression ratio",
            [queries.compression_ratio],
            "none",
            "Mean of bytes before / bytes after compression, without the header of a checkpoint. Near 1, compression costs time and saves nothing: turn it off, or choose another codec.",
            empty="nothing was compressed in this time range",
            width=8,
        ),
    ]


def _resources() -> list[Panel]:
    return [
        stacked_areas(
            "CPU time by phase",
            [queries.cpu_time],
            "s",
            "CPU seconds of the calling threads in the last window. Phases below 0.1 ms are not counted.",
            empty=NOT_MEASURED,
            width=8,
        ),
        lines(
            "Disk I/O",
            [queries.disk_io],
            "bytes",
            "Bytes that operations read from and wrote to disk in the last window. If more is written than stored, the store writes data more than once.",
            empty=NOT_MEASURED,
            width=8,
        ),
        lines(
            "Peak memory",
            [queries.peak_memory],
            "bytes",
            "Peak resident memory of the process at its last operation. If it steps up at each save, the state is copied for saving.",
            empty="unknown",
            width=8,
        ),
    ]
