"""The Operations dashboard: counts, errors, durations and resource usage of checkpoint operations."""

from __future__ import annotations

from ckpt_observe.dashboards import queries
from ckpt_observe.dashboards.colours import ASYNC_TIMES, DIRECTIONS, ERROR_CLASSES, OPERATIONS, OUTCOMES, PERCENTILES, PHASES, SIZES
from ckpt_observe.dashboards.layout import Dashboard, Row, operation_variable, task_variable, window_variable
from ckpt_observe.dashboards.panels import COUNT, Panel, bars, heatmap, lines, stacked_areas
from ckpt_observe.dashboards.tables import TableColumn, table
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
        variables=[task_variable(), operation_variable(), window_variable("1h")],
        rows=[
            Row("Operations and errors", _counts()),
            Row("Duration", _durations()),
            Row("Size and throughput", _sizes()),
            Row("Resource usage", _resources()),
            Row("Async saves", _async_saves(), collapsed=True),
            Row("Distributed saves: stragglers", _stragglers(), collapsed=True),
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
            colours=OUTCOMES,
        ),
        bars(
            "Errors by class",
            [queries.errors],
            COUNT,
            "The eight most frequent classes of failed and interrupted operations. capacity: free disk space. integrity: restore an older checkpoint and check the disk. unavailable, timeout: check the server of the store. serialization: the state contains something that cannot be saved. Click to open their traces.",
            empty="no error in this time range",
            traces=f"{names.ERROR_CLASS}=${{__field.labels.error_class}}",
            colours=ERROR_CLASSES,
        ),
        bars(
            "Operations by type",
            [queries.operation_counts],
            COUNT,
            "Finished operations in each step: saves, loads, restores, ... with any outcome.",
            empty=NO_OPERATION,
            colours=OPERATIONS,
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
            "Age of the checkpoints that restores returned to: the work since then was lost. The eight tasks that lost most. If this is a lot, save more often.",
            empty="no restore in this time range",
            width=24,
        ),
    ]


def _durations() -> list[Panel]:
    columns = [
        TableColumn("p95", queries.task_percentiles[0], "s"),
        TableColumn("p50", queries.task_percentiles[1], "s"),
        TableColumn("Last", queries.task_last_duration, "s"),
        TableColumn("Operations", queries.task_operations, COUNT),
    ]
    return [
        lines(
            "Save duration percentiles",
            queries.save_percentiles,
            "s",
            "50, 95 and 99 % of the saves take no longer than this. If p99 is far above p50, compare the phases of a slow trace with those of a usual one (see Traces by duration).",
            empty="no save in this time range",
            logarithmic=True,
            colours=PERCENTILES,
        ),
        lines(
            "95th percentile duration by operation",
            [queries.p95_by_operation],
            "s",
            "95 % of the operations take no longer than this.",
            empty=NO_OPERATION,
            logarithmic=True,
            colours=OPERATIONS,
        ),
        heatmap(
            "Duration heatmap",
            queries.duration_heatmap,
            "s",
            "Number of operations by duration. Two bands are two kinds of operations, or a store that is sometimes slow.",
            empty=NO_OPERATION,
        ),
        lines(
            "Traces by duration",
            queries.traces_by_duration,
            "s",
            "Each dot is an operation; click it to open its trace. The lines are the upper bound of the slowest operation in the window, and the median.",
            empty=NO_OPERATION,
            logarithmic=True,
            colours=PERCENTILES,
        ),
        stacked_areas(
            "Mean time by phase",
            [queries.phase_times],
            "s",
            "Mean time of each phase in an operation, over all tasks. serialize, compress: CPU of the program. write, read: the store. wait: another thread is behind.",
            empty=NO_OPERATION,
            width=24,
            colours=PHASES,
        ),
        table(
            "Duration by task",
            columns,
            ("job", "task", "operation"),
            "Durations of the operations of each task in the time range, the slowest first. p95: 95 % take no longer. Last: the last finished operation; useful if there are too few operations for percentiles.",
            empty=NO_OPERATION,
        ),
    ]


def _async_saves() -> list[Panel]:
    columns = [
        TableColumn("Durable", queries.async_durable, "s"),
        TableColumn("Blocked", queries.async_blocked, "s"),
        TableColumn("Released", queries.async_released, "s"),
        TableColumn("Pending", queries.async_pending, "s"),
    ]
    return [
        lines(
            "Async save times (95th percentile)",
            queries.async_percentiles,
            "s",
            "blocked: the save holds up the program. released: the program may change the state. durable: the checkpoint survives a crash. pending: from released to durable; a program that dies in this time loses the save. If blocked is far above released, the program waits for the previous save.",
            empty=NO_ASYNC_SAVE,
            logarithmic=True,
            colours=ASYNC_TIMES,
        ),
        table(
            "Async save times by task",
            columns,
            ("job", "task"),
            "95 % of the async saves in the time range took no longer than this, the slowest task first. Pending: from released to durable. If a save takes longer than the interval between saves until it is durable, the store is too slow.",
            empty=NO_ASYNC_SAVE,
            width=12,
        ),
    ]


def _stragglers() -> list[Panel]:
    return [
        bars(
            "Saves with a straggler",
            [queries.stragglers],
            COUNT,
            "Distributed saves in which one rank took at least 1 s and 20 % longer than the median of the others, by the phase in which it was slow. The span of the save names the rank. write: its disk or network. stage: its memory or GPU. plan: its CPU. Click to open the traces.",
            empty="no straggler in this time range",
            traces=f"{names.STRAGGLER_PHASE}=${{__field.labels.phase}}",
        ),
        bars(
            "Time waiting for stragglers",
            [queries.straggler_delay],
            "s",
            "How much longer than the median of the others the slowest rank took, in total. All ranks wait for it at each synchronous save.",
            empty="no straggler in this time range",
        ),
    ]


def _sizes() -> list[Panel]:
    return [
        lines(
            "Throughput",
            [queries.throughput],
            "binBps",
            "Mean stored bytes per second of whole operations. If it falls while sizes stay the same, the store, or the CPU for compression, has become slower.",
            empty=NO_SIZES,
            width=8,
            colours=OPERATIONS,
        ),
        lines(
            "Checkpoint size",
            [queries.mean_size],
            "bytes",
            "Mean size of saved and loaded checkpoints: the state in memory if known, serialized, and in the store.",
            empty=NO_SIZES,
            width=8,
            colours=SIZES,
        ),
        table(
            "Compression ratio by task",
            [TableColumn("Ratio", queries.compression_ratio, "suffix: ×")],
            ("job", "task"),
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
            "Mean CPU time of the calling thread in each phase of an operation, over all tasks. Phases below 0.1 ms are not counted.",
            empty=NOT_MEASURED,
            width=8,
            colours=PHASES,
        ),
        lines(
            "Disk I/O per operation",
            [queries.disk_io],
            "bytes",
            "Mean bytes that an operation reads from and writes to disk. If more is written than stored, the store writes data more than once.",
            empty=NOT_MEASURED,
            width=8,
            colours=DIRECTIONS,
        ),
        lines(
            "Peak memory",
            [queries.peak_memory],
            "bytes",
            "Peak resident memory of the process at its last operation, of the eight instances that need most. If it steps up at each save, the state is copied for saving.",
            empty="unknown",
            width=8,
        ),
    ]
