"""How much is kept, where it goes, and when there is no more room."""

from __future__ import annotations

from ckpt_observe.dashboards import queries as ask
from ckpt_observe.dashboards import variables
from ckpt_observe.dashboards.kinds import bars, lines, ranking, stacked, stat
from ckpt_observe.dashboards.layouts import Dashboard, Row
from ckpt_observe.dashboards.panels import COUNT, Panel, above, below

DAY = 86400.0
REMOTE = "not a file system of this host"


def dashboard() -> Dashboard:
    return Dashboard(
        title="Storage",
        description="How much is kept, whether it grows, when it is full, and what in the state is large. The forecast is over the window chosen above.",
        span="7d",
        variables=[variables.task(), variables.window()],
        rows=[Row("How long will it fit?", _verdict()), Row("Growth and retention", _growth()), Row("What is large?", _largest())],
    )


def _verdict() -> list[Panel]:
    return [
        stat(
            "Kept",
            ask.kept_in_all,
            "bytes",
            "Stored bytes of all saves less those that delete and retention removed, as far as observed. What was removed by hand is not known here.",
            empty="no save yet",
            width=4,
        ),
        stat(
            "Growth",
            ask.growth,
            "bytes",
            "By how much more is kept than at the beginning of the time shown. Retention that keeps a fixed number brings it near zero.",
            empty="no save in this time",
            width=4,
        ),
        stat(
            "Removed",
            ask.removed_in_all,
            COUNT,
            "Checkpoints that delete and retention removed in the time shown. None, while saves go on: retention is not set (`keep_last`).",
            empty="nothing was ever removed",
            width=4,
        ),
        stat("Free", ask.least_free, "bytes", "Free space of the fullest file system that saves go to.", empty=REMOTE, width=4),
        stat(
            "Room for saves",
            ask.room,
            COUNT,
            "How many more saves of the last size fit into the free space. Few: make room or keep fewer, before a save fails with no space.",
            empty=REMOTE,
            steps=below(3, 20),
            width=4,
        ),
        stat(
            "Full in",
            ask.full_in,
            "s",
            "When the free space is used up if it goes on as in the window. Less than a week: keep fewer checkpoints, or give more room.",
            empty="not getting less in this window",
            steps=below(DAY, 7 * DAY),
            width=4,
        ),
    ]


def _growth() -> list[Panel]:
    return [
        lines(
            "Kept by task",
            [ask.kept],
            "bytes",
            "A line that rises without end: no retention. A saw: retention at work.",
            empty="no save yet",
        ),
        lines(
            "Free space and forecast",
            [ask.free, ask.free_tomorrow],
            "bytes",
            "Free space where each task saves, and where its trend over the window leads in a day. Below zero: full within a day.",
            empty=REMOTE,
            least=None,
        ),
        bars(
            "Bytes saved and removed",
            [ask.bytes_saved, ask.bytes_freed],
            "bytes",
            "What saves added and what delete and retention gave back. In the long run both should be as large.",
            empty="no save in this time",
            least=None,
        ),
        bars(
            "Checkpoints removed",
            [ask.removed],
            COUNT,
            "prune is retention, delete a call of the program.",
            empty="nothing removed in this time",
        ),
    ]


def _largest() -> list[Panel]:
    return [
        ranking(
            "Largest keys",
            ask.largest_keys,
            "bytes",
            "Top-level keys of the state in the last good save, serialized; _other_ is the rest. The largest is what to make smaller, or to save less often (incremental).",
            empty="no state with keys saved yet",
        ),
        stacked(
            "Keys over time",
            [ask.keys],
            "bytes",
            "Which key grows. A list of messages or results that is never cut is the usual one.",
            empty="no state with keys saved yet",
        ),
        lines(
            "Last size by task",
            [ask.sizes_by_task],
            "bytes",
            "Of the last good save: the state where known, serialized, and in the store.",
            empty="no save yet",
        ),
        lines(
            "Growth of the state",
            [ask.state_growth],
            "percentunit",
            "The last save as a share of the smallest in the time shown. At 200 % it has doubled: look at its keys.",
            empty="no save yet",
            least=None,
            steps=above(2, 10),
        ),
    ]
