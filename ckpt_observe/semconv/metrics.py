"""Metrics as data: one table makes the Prometheus and the OTLP metrics, the dashboards' names and the docs."""

from __future__ import annotations

from typing import Final, NamedTuple

OTHER: Final = "_other_"
"""The label value of everything beyond a closed or capped set."""

LABEL_VALUES: Final = 100
"""How many values a label without a closed set may have; then `_other_`, counted by `ckpt_observe_label_overflow_total`."""

LATE_AFTER: Final = 2.5
"""Expected intervals after which a save is late, on dashboards and for alerts. One that is skipped or fails makes two, and none is on the minute."""

_PROMETHEUS_UNITS: Final = {"s": "seconds", "By": "bytes", "By/s": "bytes_per_second"}


class MetricSpec(NamedTuple):
    """One metric. `name` is OpenTelemetry's; `unit` is in UCUM; `labels` are the only ones it may have."""

    name: str
    instrument: str
    unit: str
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_unit(self) -> str:
        """The unit as Prometheus spells it; empty where the number counts things (`{operation}`) or has no dimension (`1`)."""
        return _PROMETHEUS_UNITS.get(self.unit, "")

    @property
    def prometheus_family(self) -> str:
        """The name in Prometheus without `_total`: dots to underscores, the unit behind it unless it is there already."""
        base, unit = self.name.replace(".", "_"), self.prometheus_unit
        return base if not unit or base.endswith("_" + unit) else f"{base}_{unit}"

    @property
    def prometheus_name(self) -> str:
        return self.prometheus_family + ("_total" if self.instrument == "counter" else "")


DURATION_BUCKETS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
    7200.0,
    21600.0,
)
"""1 ms to 6 h: an agent's SQLite row and a trillion-parameter save are both checkpoints."""

SIZE_BUCKETS: Final = tuple(float(1 << shift) for shift in range(10, 41, 2))
"""1 KiB to 1 TiB in steps of four."""

RATIO_BUCKETS: Final = (0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)

AGE_BUCKETS: Final = (1.0, 10.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0, 604800.0)
"""A second to a week: how much work a restore threw away."""

LARGEST_KEYS: Final = 8
"""How many top-level keys of a state are told apart."""

_WHO: Final = ("operation", "system", "store", "task")
_TASK: Final = ("operation", "task")

OPERATIONS: Final = MetricSpec(
    "checkpoint.operations",
    "counter",
    "{operation}",
    ("operation", "outcome", "error_class", "system", "store", "task"),
    "Operations that ended, by outcome; error_class is empty unless it failed.",
)
OPERATION_DURATION: Final = MetricSpec(
    "checkpoint.operation.duration", "histogram", "s", _WHO, "Time of a whole operation.", DURATION_BUCKETS
)
PHASE_DURATION: Final = MetricSpec(
    "checkpoint.phase.duration", "histogram", "s", ("operation", "phase"), "Time of one phase.", DURATION_BUCKETS
)
SIZE: Final = MetricSpec(
    "checkpoint.size", "histogram", "By", ("kind", "operation", "task"), "Size of a checkpoint: state, serialized or stored.", SIZE_BUCKETS
)
RATIO: Final = MetricSpec("checkpoint.compression.ratio", "histogram", "1", ("task",), "serialized / stored.", RATIO_BUCKETS)
THROUGHPUT: Final = MetricSpec(
    "checkpoint.throughput", "histogram", "By/s", ("operation",), "Stored bytes per second of a whole operation.", SIZE_BUCKETS
)
RESTORE_AGE: Final = MetricSpec(
    "checkpoint.restore.age",
    "histogram",
    "s",
    ("task",),
    "How old the checkpoint was that a restore or load came back to: the work that was lost.",
    AGE_BUCKETS,
)
CORRUPTION: Final = MetricSpec(
    "checkpoint.corruption",
    "counter",
    "{checkpoint}",
    _TASK,
    "Checkpoints found damaged: operations that failed with error_class integrity, what a verify found, and what a load or restore passed over.",
)
ALTERED_KEYS: Final = MetricSpec(
    "checkpoint.altered.keys", "counter", "{key}", _TASK, "Top-level keys of a state that came back other than they were saved."
)
DELETED_CHECKPOINTS: Final = MetricSpec(
    "checkpoint.deleted", "counter", "{checkpoint}", _TASK, "Checkpoints removed by delete, and by retention (prune)."
)
FREED_BYTES: Final = MetricSpec(
    "checkpoint.freed", "counter", "By", _TASK, "Stored bytes of the checkpoints that delete and prune removed."
)
CPU_TIME: Final = MetricSpec("checkpoint.cpu.time", "counter", "s", _TASK, "CPU time of the calling thread in operations.")
PHASE_CPU_TIME: Final = MetricSpec(
    "checkpoint.phase.cpu.time", "counter", "s", ("operation", "phase"), "CPU time of the calling thread in phases."
)
IO: Final = MetricSpec(
    "checkpoint.io", "counter", "By", ("operation", "direction", "task"), "Bytes that operations made the disk read or write."
)
TASKS: Final = MetricSpec("checkpoint.tasks", "counter", "{task}", ("task", "outcome"), "Task runs that ended, by outcome.")

IN_FLIGHT: Final = MetricSpec("checkpoint.in_flight", "gauge", "{operation}", _TASK, "Operations running now.")
OLDEST_START: Final = MetricSpec(
    "checkpoint.in_flight.oldest_start.timestamp", "gauge", "s", _TASK, "When the oldest operation running now began (Unix time)."
)
TASKS_IN_FLIGHT: Final = MetricSpec("checkpoint.tasks.in_flight", "gauge", "{task}", ("task",), "Task runs going on now.")
TASKS_OLDEST_START: Final = MetricSpec(
    "checkpoint.tasks.in_flight.oldest_start.timestamp", "gauge", "s", ("task",), "When the oldest task run going on now began (Unix time)."
)
LAST_SUCCESS: Final = MetricSpec(
    "checkpoint.last_success.timestamp",
    "gauge",
    "s",
    _TASK,
    "When an operation last succeeded (Unix time); survives restarts. The work at risk is what was done since the last save.",
)
LAST_ATTEMPT: Final = MetricSpec(
    "checkpoint.last_attempt.timestamp", "gauge", "s", _TASK, "When an operation was last begun (Unix time); survives restarts."
)
FIRST_ATTEMPT: Final = MetricSpec(
    "checkpoint.first_attempt.timestamp",
    "gauge",
    "s",
    _TASK,
    "When an operation was first begun (Unix time); survives restarts. Without a last success: it never worked.",
)
LAST_FAILURE: Final = MetricSpec(
    "checkpoint.last_failure.timestamp",
    "gauge",
    "s",
    ("operation", "task", "error_class"),
    "When there last was a failure of this class (Unix time), damage that a verify found included; a death counts from when somebody found it; survives restarts.",
)
LAST_ALTERED: Final = MetricSpec(
    "checkpoint.last_altered.timestamp",
    "gauge",
    "s",
    _TASK,
    "When a state last came back with a key that is not as it was saved (Unix time); survives restarts.",
)
LAST_VERIFIED: Final = MetricSpec(
    "checkpoint.last_verified_restore.timestamp",
    "gauge",
    "s",
    ("task",),
    "When a checkpoint was last read back and found right: a load or restore that validated it, or a verify without findings (Unix time).",
)
EXPECTED_INTERVAL: Final = MetricSpec(
    "checkpoint.expected_interval", "gauge", "s", ("task",), "Time between two saves: as declared, else as learnt after three gaps."
)
CONSECUTIVE_FAILURES: Final = MetricSpec(
    "checkpoint.consecutive_failures", "gauge", "{operation}", _TASK, "Failures since the last success."
)
LAST_DURATION: Final = MetricSpec("checkpoint.last_duration", "gauge", "s", _TASK, "Time of the last operation that ended.")
LAST_SIZE: Final = MetricSpec(
    "checkpoint.last_size", "gauge", "By", ("kind", "task"), "Size of the last good save: state, serialized or stored."
)
KEY_SIZE: Final = MetricSpec(
    "checkpoint.key.size",
    "gauge",
    "By",
    ("key", "task"),
    "Serialized size of the largest top-level keys in the last good save, at most eight, and a hundred names in all; `_other_` is the rest of it.",
)
KEPT_BYTES: Final = MetricSpec(
    "checkpoint.storage.kept",
    "gauge",
    "By",
    ("task",),
    "Stored bytes of all saves less those that delete and prune gave back, as far as they were observed.",
)
FREE_BYTES: Final = MetricSpec(
    "checkpoint.storage.free",
    "gauge",
    "By",
    ("task",),
    "Free space of the file system that the last save went to; none where it is not one of this host, or does not answer.",
)
MEMORY_PEAK: Final = MetricSpec(
    "checkpoint.memory.peak", "gauge", "By", _TASK, "Highest resident memory of the process, as seen by its last operation."
)

BUILD: Final = MetricSpec("ckpt_observe.build.info", "gauge", "", ("version",), "Always 1: the metrics are served.")
PROCESSES: Final = MetricSpec(
    "ckpt_observe.processes",
    "gauge",
    "{process}",
    ("state",),
    "Processes with a journal: live ones, and dead ones whose records are not all delivered.",
)
SPOOL_SIZE: Final = MetricSpec("ckpt_observe.spool.size", "gauge", "By", (), "Records on disk that wait for an exporter, of all processes.")
RECORDS: Final = MetricSpec(
    "ckpt_observe.records",
    "counter",
    "{operation}",
    ("event",),
    "Operations that left the ordinary way: spilled to disk by the caller, or without a protected page.",
)
DROPPED_RECORDS: Final = MetricSpec(
    "ckpt_observe.dropped", "counter", "{operation}", ("reason",), "Operations that were not recorded or not delivered, by reason."
)
DELIVERED_SPANS: Final = MetricSpec("ckpt_observe.delivered", "counter", "{span}", ("exporter",), "Spans that an exporter has.")
REFUSED_SPANS: Final = MetricSpec("ckpt_observe.refused", "counter", "{span}", ("exporter",), "Spans that an exporter will never take.")
RETRIES: Final = MetricSpec(
    "ckpt_observe.retries", "counter", "{attempt}", ("exporter",), "Attempts to deliver that failed and are repeated."
)
FAULTS: Final = MetricSpec(
    "ckpt_observe.faults", "counter", "{fault}", (), "Faults of ckpt_observe itself, caught before they reached the program."
)
LABEL_OVERFLOW: Final = MetricSpec(
    "ckpt_observe.label.overflow",
    "counter",
    "{operation}",
    ("label",),
    "Operations counted as `_other_` because a label has as many values as it may.",
)

METRICS: Final = (
    OPERATIONS, OPERATION_DURATION, PHASE_DURATION, SIZE, RATIO, THROUGHPUT, RESTORE_AGE, CORRUPTION, ALTERED_KEYS, DELETED_CHECKPOINTS, FREED_BYTES, CPU_TIME, PHASE_CPU_TIME, IO,
    TASKS, IN_FLIGHT, OLDEST_START, TASKS_IN_FLIGHT, TASKS_OLDEST_START, LAST_SUCCESS, LAST_ATTEMPT, FIRST_ATTEMPT, LAST_FAILURE, LAST_ALTERED, LAST_VERIFIED,
    EXPECTED_INTERVAL, CONSECUTIVE_FAILURES, LAST_DURATION, LAST_SIZE, KEY_SIZE, KEPT_BYTES, FREE_BYTES, MEMORY_PEAK,
    BUILD, PROCESSES, SPOOL_SIZE, RECORDS, DROPPED_RECORDS, DELIVERED_SPANS, REFUSED_SPANS, RETRIES, FAULTS, LABEL_OVERFLOW,
)  # fmt: skip

DROP_REASONS: Final = {
    "lost": "There was no page for it and no room on disk.",
    "cut": "Something was left out of it: it was larger than its pages.",
    "overflow": "An exporter was away until the spool, or what ended processes left together, was full; counted for each exporter that had not had it.",
    "corrupt": "Its record on disk was not what was written.",
    "unknown": "Its record was not understood.",
}

RECORD_EVENTS: Final = ("spilled", "unprotected")
