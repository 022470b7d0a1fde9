"""Metrics as data: Prometheus and OTLP metrics, dashboards, alerts and docs are all made from this table."""

from __future__ import annotations

from typing import Final, NamedTuple

OTHER: Final = "_other_"
"""Label value for everything outside a closed set or above the limit of a label."""

LABEL_VALUES: Final = 100
"""Maximum number of values of a label without a closed set. Further values become `_other_` and are counted in `ckpt_observe_label_overflow_total`."""

LATE_AFTER: Final = 2.5
"""Number of expected intervals after which a save is late, for dashboards and alerts. One missed save takes two intervals and some jitter."""

_PROMETHEUS_UNITS: Final = {"s": "seconds", "By": "bytes", "By/s": "bytes_per_second"}


class MetricSpec(NamedTuple):
    """A metric. `name` is the OpenTelemetry name, `unit` is in UCUM, `labels` are all labels it may have."""

    name: str
    instrument: str
    unit: str
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_unit(self) -> str:
        """The unit as Prometheus spells it, such as `seconds`; empty for counts (`{operation}`) and dimensionless numbers (`1`)."""
        return _PROMETHEUS_UNITS.get(self.unit, "")

    @property
    def prometheus_family(self) -> str:
        """The name in Prometheus without `_total`: dots become underscores, and the unit is appended unless the name ends with it."""
        base, unit = self.name.replace(".", "_"), self.prometheus_unit
        return base if not unit or base.endswith("_" + unit) else f"{base}_{unit}"

    @property
    def prometheus_name(self) -> str:
        return self.prometheus_family + ("_total" if self.instrument == "counter" else "")


DURATION_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
    30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0,
)  # fmt: skip
"""1 ms to 6 h: from an agent's row in SQLite to the save of a trillion-parameter model."""

SIZE_BUCKETS: Final = tuple(float(1 << shift) for shift in range(10, 41, 2))
"""1 KiB to 1 TiB, each bucket four times as large as the one before."""

RATIO_BUCKETS: Final = (0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)

AGE_BUCKETS: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0, 604800.0)
"""One second to one week: the age of a restored checkpoint."""

LARGEST_KEYS: Final = 8
"""Number of top-level keys of a state that are reported by name."""

_OUTCOMES: Final = ("operation", "outcome", "error_class", "system", "store", "task")
_SYSTEM: Final = ("operation", "system", "store", "task")
_TASK: Final = ("operation", "task")

# fmt: off
OPERATIONS: Final = MetricSpec("checkpoint.operations", "counter", "{operation}", _OUTCOMES, "Finished operations by outcome. error_class is empty if the outcome is ok or skipped.")
OPERATION_DURATION: Final = MetricSpec("checkpoint.operation.duration", "histogram", "s", _SYSTEM, "Duration of an operation.", DURATION_BUCKETS)
ASYNC_BLOCKED: Final = MetricSpec("checkpoint.async.blocked", "histogram", "s", ("system", "task"), "Time for which an async save held up the program.", DURATION_BUCKETS)
ASYNC_RELEASED: Final = MetricSpec("checkpoint.async.released", "histogram", "s", ("system", "task"), "Time from the start of an async save until the program could go on and change the state.", DURATION_BUCKETS)
ASYNC_DURABLE: Final = MetricSpec("checkpoint.async.durable", "histogram", "s", ("system", "task"), "Time from the start of an async save until the checkpoint was durable.", DURATION_BUCKETS)
ASYNC_PENDING: Final = MetricSpec("checkpoint.async.pending", "histogram", "s", ("system", "task"), "Time from the release of the program until the checkpoint of an async save was durable: a crash in between loses the save.", DURATION_BUCKETS)
STRAGGLER_DELAY: Final = MetricSpec("checkpoint.straggler.delay", "histogram", "s", ("phase", "task"), "Time by which a phase of the slowest rank took longer than the median of the other ranks, in distributed saves that had a straggler.", DURATION_BUCKETS)
PHASE_DURATION: Final = MetricSpec("checkpoint.phase.duration", "histogram", "s", ("operation", "phase"), "Duration of a phase.", DURATION_BUCKETS)
SIZE: Final = MetricSpec("checkpoint.size", "histogram", "By", ("kind", "operation", "task"), "Size of a checkpoint; kind is state, serialized or stored.", SIZE_BUCKETS)
RATIO: Final = MetricSpec("checkpoint.compression.ratio", "histogram", "1", ("task",), "What the codec achieved: bytes before / bytes after compression. Operations without compression are not counted.", RATIO_BUCKETS)
THROUGHPUT: Final = MetricSpec("checkpoint.throughput", "histogram", "By/s", ("operation",), "Stored bytes per second over the whole operation.", SIZE_BUCKETS)
RESTORE_AGE: Final = MetricSpec("checkpoint.restore.age", "histogram", "s", ("task",), "Age of the checkpoint that a restore returned to: the work that was lost. A load loses none, such as that of an agent that waited for a human.", AGE_BUCKETS)
DRILL_AGE: Final = MetricSpec("checkpoint.drill.age", "histogram", "s", ("task",), "Age of the newest checkpoint in a restore drill: the work that a crash at that moment would have lost. The time to recover is the duration of the operation drill.", AGE_BUCKETS)
CORRUPTION: Final = MetricSpec("checkpoint.corruption", "counter", "{checkpoint}", _TASK, "Damaged checkpoints: operations that failed with error_class integrity, findings of a verify, and checkpoints that a load or restore skipped.")
ALTERED_KEYS: Final = MetricSpec("checkpoint.altered.keys", "counter", "{key}", _TASK, "Top-level keys of a restored state that differ from what was saved.")
DELETED_CHECKPOINTS: Final = MetricSpec("checkpoint.deleted", "counter", "{checkpoint}", _TASK, "Checkpoints removed by delete and by retention (prune).")
FREED_BYTES: Final = MetricSpec("checkpoint.freed", "counter", "By", _TASK, "Stored bytes of the checkpoints removed by delete and prune.")
CPU_TIME: Final = MetricSpec("checkpoint.cpu.time", "counter", "s", _TASK, "CPU time of the calling thread during operations.")
PHASE_CPU_TIME: Final = MetricSpec("checkpoint.phase.cpu.time", "counter", "s", ("operation", "phase"), "CPU time of the calling thread during phases.")
IO: Final = MetricSpec("checkpoint.io", "counter", "By", ("operation", "direction", "task"), "Bytes that operations read from and wrote to disk.")
TASKS: Final = MetricSpec("checkpoint.tasks", "counter", "{task}", ("task", "outcome"), "Finished task runs by outcome.")

IN_FLIGHT: Final = MetricSpec("checkpoint.in_flight", "gauge", "{operation}", _TASK, "Operations that are running now.")
OLDEST_START: Final = MetricSpec("checkpoint.in_flight.oldest_start.timestamp", "gauge", "s", _TASK, "Start of the oldest operation that is running now (Unix time).")
TASKS_IN_FLIGHT: Final = MetricSpec("checkpoint.tasks.in_flight", "gauge", "{task}", ("task",), "Task runs that are running now.")
TASKS_OLDEST_START: Final = MetricSpec("checkpoint.tasks.in_flight.oldest_start.timestamp", "gauge", "s", ("task",), "Start of the oldest task run that is running now (Unix time).")
LAST_SUCCESS: Final = MetricSpec("checkpoint.last_success.timestamp", "gauge", "s", _TASK, "End of the last successful operation (Unix time); survives restarts. Work done since the last successful save is at risk.")
LAST_ATTEMPT: Final = MetricSpec("checkpoint.last_attempt.timestamp", "gauge", "s", _TASK, "Start of the last operation (Unix time); survives restarts.")
FIRST_ATTEMPT: Final = MetricSpec("checkpoint.first_attempt.timestamp", "gauge", "s", _TASK, "Start of the first operation (Unix time); survives restarts. If there is no last success, the operation has never succeeded.")
LAST_FAILURE: Final = MetricSpec("checkpoint.last_failure.timestamp", "gauge", "s", ("operation", "task", "error_class"), "Time of the last failure of this error class (Unix time), including damage found by a verify; survives restarts. The death of a process counts when it is detected.")
LAST_ALTERED: Final = MetricSpec("checkpoint.last_altered.timestamp", "gauge", "s", _TASK, "Last time a restored state had a key that differs from what was saved (Unix time); survives restarts.")
LAST_VERIFIED: Final = MetricSpec("checkpoint.last_verified_restore.timestamp", "gauge", "s", ("task",), "Last time a checkpoint was read back and was correct (Unix time): a load or restore that validated it or was compared with its save, or a verify without findings.")
EXPECTED_INTERVAL: Final = MetricSpec("checkpoint.expected_interval", "gauge", "s", ("task",), "Expected time between two saves: declared by the program, or learnt after three intervals.")
CONSECUTIVE_FAILURES: Final = MetricSpec("checkpoint.consecutive_failures", "gauge", "{operation}", _TASK, "Failures since the last success.")
LAST_DURATION: Final = MetricSpec("checkpoint.last_duration", "gauge", "s", _TASK, "Duration of the last finished operation.")
LAST_SIZE: Final = MetricSpec("checkpoint.last_size", "gauge", "By", ("kind", "task"), "Size of the last successful save; kind is state, serialized or stored.")
KEY_SIZE: Final = MetricSpec("checkpoint.key.size", "gauge", "By", ("key", "task"), "Serialized size of the largest top-level keys in the last successful save: at most eight per save and a hundred names in all. `_other_` is the sum of the remaining keys.")
KEPT_BYTES: Final = MetricSpec("checkpoint.storage.kept", "gauge", "By", ("task",), "Stored bytes of all observed saves minus those removed by delete and prune.")
FREE_BYTES: Final = MetricSpec("checkpoint.storage.free", "gauge", "By", ("task",), "Free space on the file system of the last save. Missing if it is not a file system of this machine or does not respond.")
MEMORY_PEAK: Final = MetricSpec("checkpoint.memory.peak", "gauge", "By", _TASK, "Peak resident memory of the process at its last operation.")

BUILD: Final = MetricSpec("ckpt_observe.build.info", "gauge", "", ("version",), "Always 1 while metrics are served.")
PROCESSES: Final = MetricSpec("ckpt_observe.processes", "gauge", "{process}", ("state",), "Processes that have a journal: live ones, and dead ones with undelivered records.")
SPOOL_SIZE: Final = MetricSpec("ckpt_observe.spool.size", "gauge", "By", (), "Bytes of records on disk that an exporter has not received, of all processes.")
RECORDS: Final = MetricSpec("ckpt_observe.records", "counter", "{operation}", ("event",), "Operations recorded with a fallback: spilled (all pages were in use, so the caller wrote to disk) or unprotected (no free page, so only in memory until it ended).")
DROPPED_RECORDS: Final = MetricSpec("ckpt_observe.dropped", "counter", "{operation}", ("reason",), "Operations that were not recorded or not delivered, by reason.")
DELIVERED_SPANS: Final = MetricSpec("ckpt_observe.delivered", "counter", "{span}", ("exporter",), "Spans delivered to an exporter.")
REFUSED_SPANS: Final = MetricSpec("ckpt_observe.refused", "counter", "{span}", ("exporter",), "Spans that an exporter rejected for good.")
SET_ASIDE_SPANS: Final = MetricSpec("ckpt_observe.set_aside", "counter", "{span}", ("exporter",), "Spans on which a server failed repeatedly. They are kept on disk and sent again later.")
RETRIES: Final = MetricSpec("ckpt_observe.retries", "counter", "{attempt}", ("exporter",), "Failed delivery attempts that are retried.")
FAULTS: Final = MetricSpec("ckpt_observe.faults", "counter", "{fault}", (), "Internal errors of ckpt_observe that were caught before they reached the program.")
LABEL_OVERFLOW: Final = MetricSpec("ckpt_observe.label.overflow", "counter", "{operation}", ("label",), "How often a value was counted as `_other_` because the label has reached its maximum number of values.")

METRICS: Final = (
    OPERATIONS, OPERATION_DURATION, ASYNC_BLOCKED, ASYNC_RELEASED, ASYNC_DURABLE, ASYNC_PENDING, STRAGGLER_DELAY, PHASE_DURATION, SIZE, RATIO, THROUGHPUT, RESTORE_AGE, DRILL_AGE, CORRUPTION, ALTERED_KEYS, DELETED_CHECKPOINTS, FREED_BYTES,
    CPU_TIME, PHASE_CPU_TIME, IO, TASKS, IN_FLIGHT, OLDEST_START, TASKS_IN_FLIGHT, TASKS_OLDEST_START, LAST_SUCCESS, LAST_ATTEMPT, FIRST_ATTEMPT,
    LAST_FAILURE, LAST_ALTERED, LAST_VERIFIED, EXPECTED_INTERVAL, CONSECUTIVE_FAILURES, LAST_DURATION, LAST_SIZE, KEY_SIZE, KEPT_BYTES, FREE_BYTES,
    MEMORY_PEAK, BUILD, PROCESSES, SPOOL_SIZE, RECORDS, DROPPED_RECORDS, DELIVERED_SPANS, REFUSED_SPANS, SET_ASIDE_SPANS, RETRIES, FAULTS, LABEL_OVERFLOW,
)
# fmt: on

DROP_REASONS: Final = {
    "lost": "No free page, and no space on disk.",
    "missed": "The journal could not be created, for example because no file descriptor was free. It is tried again, with growing pauses.",
    "cut": "The operation was too large for its pages, and some of its details were left out.",
    "overflow": "An exporter was down until the spool, or the journals of dead processes together, reached the disk limit. Counted once for each exporter that missed the record.",
    "corrupt": "The record on disk was damaged, or somebody truncated or removed the file.",
    "unknown": "The record could not be understood, for example because a newer version wrote it.",
}

RECORD_EVENTS: Final = ("spilled", "unprotected")
