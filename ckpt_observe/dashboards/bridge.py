"""Whether the observation itself works: everything recorded, kept and delivered."""

from __future__ import annotations

from ckpt_observe.dashboards import queries as ask
from ckpt_observe.dashboards.kinds import Column, bars, lines, stat, table
from ckpt_observe.dashboards.layouts import Dashboard, Row
from ckpt_observe.dashboards.panels import COUNT, Panel, above

MIB = 1 << 20


def dashboard() -> Dashboard:
    return Dashboard(
        title="Bridge",
        description="Whether what the other dashboards show is all there was: recorded, waiting, delivered, lost. `ckpt-observe doctor` on the host says more.",
        span="6h",
        variables=[],
        rows=[Row("Is anything lost?", _verdict()), Row("Journal and delivery", _journal()), Row("Exporters", _exporters())],
    )


def _verdict() -> list[Panel]:
    return [
        stat(
            "Operations lost",
            ask.lost,
            COUNT,
            "Not recorded or not delivered, in the time shown. The reason is below; `overflow`: an exporter was away until the spool was full.",
            empty="not served",
            steps=above(1, 10),
            width=4,
        ),
        stat(
            "Waiting on disk",
            ask.waiting,
            "bytes",
            "Records that some exporter has not had yet. It rises: an exporter is away (tried again, below). Bounded by the spool's limit; then the oldest are lost.",
            empty="not served",
            steps=above(16 * MIB, 64 * MIB),
            width=4,
        ),
        stat("Processes", ask.living, COUNT, "Observed processes that live.", empty="not served", width=4),
        stat(
            "Dead, waiting",
            ask.left_behind,
            COUNT,
            "Journals of dead processes with records that are not all delivered. More than a minute: no live process of that directory adopts them; start one, or run `ckpt-observe traces` there.",
            empty="not served",
            steps=above(1, 5),
            width=4,
        ),
        stat(
            "Tried again",
            ask.retried,
            COUNT,
            "Attempts that failed and were repeated, in the time shown. Nothing is lost by them as long as the spool has room.",
            empty="not served",
            steps=above(1, 100),
            width=4,
        ),
        stat(
            "Own faults",
            ask.faults,
            COUNT,
            "Faults of ckpt_observe itself, caught before they reached the program, in the time shown. The program's log has the first one: please report it.",
            empty="not served",
            steps=above(1, 1),
            width=4,
        ),
    ]


def _journal() -> list[Panel]:
    return [
        lines(
            "Waiting on disk by instance",
            [ask.waiting_by_instance],
            "bytes",
            "A saw near zero is usual. A line that rises: an exporter of that instance is away.",
            empty="not served",
        ),
        lines(
            "Processes with a journal",
            [ask.processes],
            COUNT,
            "Live ones, and dead ones whose records wait to be adopted.",
            empty="not served",
        ),
        bars(
            "Lost by reason",
            [ask.dropped],
            COUNT,
            "lost: no page and no room on disk. cut: larger than its pages. overflow: an exporter was away too long. corrupt: the record on disk was damaged. unknown: written by a newer version.",
            empty="nothing lost in this time",
        ),
        bars(
            "Recorded another way",
            [ask.records],
            COUNT,
            "spilled: all pages were in use, so the caller wrote to disk itself (slower). unprotected: kept only in memory until it ended.",
            empty="all in the ordinary way",
        ),
    ]


def _exporters() -> list[Panel]:
    return [
        lines(
            "Delivered",
            [ask.delivered],
            "cps",
            "Spans per second that each exporter has. Exporters that differ for long: one is behind.",
            empty="nothing delivered in this time",
        ),
        bars(
            "Tried again and refused",
            [ask.retries, ask.refused],
            COUNT,
            "Tried again: the exporter did not answer; its address or network. Refused: it will never take these spans; its log says why.",
            empty="every delivery went through at once",
        ),
        bars(
            "Beyond a label's limit",
            [ask.overflow],
            COUNT,
            "Operations counted as _other_ because a label has as many values as it may. Name tasks for what they do, not for their runs.",
            empty="no label is full",
        ),
        table(
            "Versions",
            [Column("Served", ask.versions, COUNT)],
            ("job", "instance", "version"),
            "Who serves metrics, and with which version.",
            empty="not served",
            width=12,
        ),
    ]
