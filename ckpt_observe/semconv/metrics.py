"""Metrics as data: one table makes the Prometheus and the OTLP instruments, the dashboards' names and the docs."""

from __future__ import annotations

from typing import Final, NamedTuple


class MetricSpec(NamedTuple):
    """One metric. `name` is OpenTelemetry's; `unit` is in UCUM; `labels` are the only ones it may have."""

    name: str
    instrument: str
    unit: str
    labels: tuple[str, ...]
    meaning: str
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The name in Prometheus: dots to underscores, unit and `_total` behind it."""
        suffix = {"s": "_seconds", "By": "_bytes", "By/s": "_bytes_per_second"}.get(self.unit, "")
        base = self.name.replace(".", "_")
        if not base.endswith(suffix):
            base += suffix
        return base + "_total" if self.instrument == "counter" else base


DURATION_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0)
"""1 ms to 6 h: an agent's SQLite row and a trillion-parameter save are both checkpoints."""

SIZE_BUCKETS: Final = tuple(float(1 << shift) for shift in range(10, 41, 2))
"""1 KiB to 1 TiB in steps of four."""

RATIO_BUCKETS: Final = (0.5, 0.9, 1.0, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0)

_WHO = ("operation", "system", "store", "task")

METRICS: Final = (
    MetricSpec("checkpoint.operations", "counter", "{operation}", ("operation", "outcome", "error_class", "system", "store", "task"), "Operations that ended, by outcome; error_class is empty unless it failed."),
    MetricSpec("checkpoint.operation.duration", "histogram", "s", _WHO, "Time of a whole operation.", DURATION_BUCKETS),
    MetricSpec("checkpoint.phase.duration", "histogram", "s", ("operation", "phase"), "Time of one phase.", DURATION_BUCKETS),
    MetricSpec("checkpoint.size", "histogram", "By", ("kind", "operation", "task"), "Size of a checkpoint: state, serialized or stored.", SIZE_BUCKETS),
    MetricSpec("checkpoint.compression.ratio", "histogram", "1", ("task",), "serialized / stored.", RATIO_BUCKETS),
    MetricSpec("checkpoint.in_flight", "gauge", "{operation}", ("operation", "task"), "Operations running now."),
    MetricSpec("checkpoint.in_flight.oldest_start.timestamp", "gauge", "s", ("operation", "task"), "When the oldest operation running now began (Unix time)."),
    MetricSpec("checkpoint.last_success.timestamp", "gauge", "s", ("operation", "task"), "When an operation last succeeded (Unix time); survives restarts."),
    MetricSpec("checkpoint.last_attempt.timestamp", "gauge", "s", ("operation", "task"), "When an operation was last tried (Unix time); survives restarts."),
    MetricSpec("checkpoint.consecutive_failures", "gauge", "{operation}", ("operation", "task"), "Failures since the last success."),
    MetricSpec("ckpt_observe.dropped", "counter", "{operation}", ("reason",), "Operations that were not recorded or not delivered, by reason."),
)
