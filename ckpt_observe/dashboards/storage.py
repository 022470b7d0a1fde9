"""The Storage dashboard: how much space checkpoints use, how they grow, and when the disk is full."""

from __future__ import annotations

from ckpt_observe.dashboards import queries
from ckpt_observe.dashboards.colours import DIRECTIONS, REMOVALS
from ckpt_observe.dashboards.layout import Dashboard, Row, task_variable, window_variable
from ckpt_observe.dashboards.panels import COUNT, Panel, above, bars, below, lines, stacked_areas, stat
from ckpt_observe.dashboards.tables import ranking

DAY = 86400.0
REMOTE = "not a local file system"


def dashboard() -> Dashboard:
    return Dashboard(
        title="Storage",
        description="How much space checkpoints use, whether it grows, when the disk is full, and which keys of the state are large. Forecasts and growth use the window chosen above.",
        span="7d",
        variables=[task_variable(), window_variable("1d")],
        rows=[Row("Capacity", _capacity()), Row("Growth and retention", _growth()), Row("Size of the state", _state_size())],
    )


def _capacity() -> list[Panel]:
    return [
        stat(
            "Storage used",
            queries.storage_used,
            "bytes",
            "Stored bytes of all observed saves minus those removed by delete and retention. Files removed by hand are not noticed.",
            empty="no save yet",
            width=4,
        ),
        stat(
            "Storage growth",
            queries.growth,
            "bytes",
            "Storage used now minus storage used at the start of the time range. Near zero if retention keeps a fixed number of checkpoints.",
            empty="no save yet",
            width=4,
        ),
        stat(
            "Removed",
            queries.total_removals,
            COUNT,
            "Checkpoints removed by delete and retention in the time range. If there are saves and no removals, retention is not configured (`keep_last`).",
            empty="no checkpoint was ever removed",
            width=4,
        ),
        stat(
            "Free space",
            queries.min_free_space,
            "bytes",
            "Free space of the file system with the least free space, of those that receive saves.",
            empty=REMOTE,
            width=4,
        ),
        stat(
            "Saves that fit",
            queries.saves_that_fit,
            COUNT,
            "Number of saves of the last size that still fit. If there are few, free disk space or keep fewer checkpoints before a save fails.",
            empty=REMOTE,
            steps=below(3, 20),
            width=4,
        ),
        stat(
            "Time until full",
            queries.time_until_full,
            "s",
            "Time until the disk is full if free space goes on shrinking as in the last window. If less than a week, keep fewer checkpoints or add disk space.",
            empty="not within a year",
            steps=below(DAY, 7 * DAY),
            width=4,
        ),
    ]


def _growth() -> list[Panel]:
    return [
        lines(
            "Storage used by task",
            [queries.storage_used_by_task],
            "bytes",
            "The eight tasks that use most. A line that rises without end means that there is no retention; a sawtooth means that retention works.",
            empty="no save yet",
        ),
        lines(
            "Free space and forecast",
            [queries.free_space, queries.free_space_forecast],
            "bytes",
            "Free space that checkpoints of each instance have, least first, and, dashed, in one window from now if it goes on shrinking as in the last window. The forecast is never above the free space: that somebody freed space is no trend. Below zero: full within the window.",
            empty=REMOTE,
            minimum=None,
            dashed=" in [0-9]+[a-z]+$",
        ),
        bars(
            "Bytes saved and removed",
            [queries.bytes_saved, queries.bytes_removed],
            "bytes",
            "Bytes added by saves, and removed by delete and retention. In the long run both should be equal.",
            empty="no save in this time range",
            minimum=None,
            colours=DIRECTIONS,
        ),
        bars(
            "Checkpoints removed",
            [queries.removals],
            COUNT,
            "prune: removed by retention. delete: removed by a call of the program.",
            empty="no checkpoint removed in this time range",
            colours=REMOVALS,
        ),
    ]


def _state_size() -> list[Panel]:
    return [
        ranking(
            "Largest keys",
            queries.largest_keys,
            "bytes",
            "Serialized size of the largest top-level keys in the last good save; _other_ is the rest. Make the largest key smaller, or save it less often (incremental).",
            empty="no state with keys saved yet",
        ),
        stacked_areas(
            "Key size over time",
            [queries.key_sizes],
            "bytes",
            "Shows which key grows. Often it is a list of messages or results that is never truncated.",
            empty="no state with keys saved yet",
        ),
        lines(
            "Checkpoint size by task",
            [queries.size_by_task],
            "bytes",
            "Bytes in the store of the last good save, of the eight largest tasks. Operations compares them with the size before compression.",
            empty="no save yet",
        ),
        lines(
            "State growth by task",
            [queries.state_growth],
            "percentunit",
            "Growth of the mean serialized size of a save from the previous window to the last one, of the eight tasks with the largest state. At 100 % it has doubled: look at its keys.",
            empty="no saves in two windows",
            minimum=None,
            steps=above(0.5, 1),
        ),
    ]
