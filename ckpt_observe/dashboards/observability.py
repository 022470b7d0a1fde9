"""The Observability health dashboard: whether ckpt_observe records and delivers everything."""

from __future__ import annotations

from ckpt_observe.dashboards import queries
from ckpt_observe.dashboards.colours import DELIVERY_FAILURES, DROPS, FALLBACKS, PROCESS_STATES
from ckpt_observe.dashboards.layout import Dashboard, Row
from ckpt_observe.dashboards.panels import COUNT, Panel, above, bars, lines, stat
from ckpt_observe.dashboards.tables import TableColumn, table

MIB = 1 << 20
NO_METRICS = "no metrics"


def dashboard() -> Dashboard:
    return Dashboard(
        title="Observability health",
        description="Whether the other dashboards show everything: recorded, waiting, delivered and dropped records. For more, run `ckpt-observe doctor` on the machine.",
        span="6h",
        variables=[],
        rows=[
            Row("Status", _status()),
            Row("Journal and delivery", _delivery()),
            Row("Losses, retries and limits", _troubles(), collapsed=True),
        ],
    )


def _status() -> list[Panel]:
    return [
        stat(
            "Dropped records",
            queries.dropped_records,
            COUNT,
            "Operations in the time range that were not recorded or not delivered, and spans that a server rejected for good. The row Losses, retries and limits shows why; overflow means that a backend was down until the spool was full.",
            empty=NO_METRICS,
            steps=above(1, 10),
            width=4,
        ),
        stat(
            "Delivery backlog",
            queries.backlog,
            "bytes",
            "Records on disk that an exporter has not received. If it rises, a backend is down (see Retries). At the disk limit the oldest records are dropped.",
            empty=NO_METRICS,
            steps=above(16 * MIB, 64 * MIB),
            width=4,
        ),
        stat("Live processes", queries.live_processes, COUNT, "Observed processes that are running.", empty=NO_METRICS, width=4),
        stat(
            "Dead processes",
            queries.dead_processes,
            COUNT,
            "Dead processes with undelivered records. If they stay for more than a minute, a backend is down (see Retries), or no running process adopts them: start one, or run `ckpt-observe traces` with that state directory.",
            empty=NO_METRICS,
            steps=above(1, 5),
            width=4,
        ),
        stat(
            "Retries",
            queries.total_retries,
            COUNT,
            "Failed delivery attempts in the time range that were retried. Nothing is lost while the spool has space.",
            empty=NO_METRICS,
            steps=above(1, 100),
            width=4,
        ),
        stat(
            "Internal errors",
            queries.internal_errors,
            COUNT,
            "Errors of ckpt_observe in the time range that were caught before they reached the program. The first one is in the log of the program; please report it.",
            empty=NO_METRICS,
            steps=above(1, 1),
            width=4,
        ),
    ]


def _delivery() -> list[Panel]:
    return [
        lines(
            "Delivery backlog by instance",
            [queries.backlog_by_instance],
            "bytes",
            "The eight instances with the largest backlog. Near zero is normal. If a line rises, an exporter of that instance cannot deliver.",
            empty=NO_METRICS,
        ),
        lines(
            "Delivered spans",
            [queries.delivery_rate],
            "suffix: spans/s",
            "Spans per second delivered to each exporter. If exporters differ for long, one of them is behind.",
            empty="nothing delivered in this time range",
        ),
        lines(
            "Processes by state",
            [queries.processes_by_state],
            COUNT,
            "Live processes, and dead ones whose records are not delivered yet.",
            empty=NO_METRICS,
            colours=PROCESS_STATES,
        ),
        table(
            "Versions",
            [TableColumn("Instances", queries.versions, COUNT)],
            ("job", "instance", "version"),
            "Instances that serve metrics, and their versions.",
            empty=NO_METRICS,
            width=12,
        ),
    ]


def _troubles() -> list[Panel]:
    return [
        bars(
            "Dropped records by reason",
            [queries.drops_by_reason],
            COUNT,
            "lost: no free page and no disk space. missed: no journal could be created. cut: too large for its pages. overflow: a backend was down too long. corrupt: the record on disk was damaged. unknown: written by a newer version.",
            empty="nothing dropped in this time range",
            colours=DROPS,
        ),
        bars(
            "Retries and refused spans",
            [queries.retries_by_exporter, queries.refused_spans, queries.set_aside_spans],
            COUNT,
            "Retries: the backend did not answer or did not accept the spans yet; check its address, the key and the network. Refused: the backend will never accept these spans; its log says why. Set aside: the backend fails on these spans; they are kept on disk and sent again later.",
            empty="every delivery succeeded at once",
            colours=DELIVERY_FAILURES,
        ),
        bars(
            "Recording fallbacks",
            [queries.recording_fallbacks],
            COUNT,
            "spilled: all pages were in use, so the calling thread wrote finished operations to disk itself (slower). unprotected: no page was free, so the operation was kept only in memory until it ended.",
            empty="no fallback in this time range",
            colours=FALLBACKS,
        ),
        bars(
            "Label limit exceeded",
            [queries.label_overflow],
            COUNT,
            "How often a value was counted as _other_ because its label has reached its maximum number of values. Name tasks after what they do, not after their runs.",
            empty="no label is at its limit",
        ),
    ]
