"""What every panel must show in the demo run with faults (`tests/services/demo_run.py`): its unit, and a range for each series.

The run has two rounds with every operation, 23 saves of a growing state (the last three to a slow store), a process that is killed during a save, a
damaged checkpoint, restores, three failed saves, an exporter that cannot be reached, and a save that is late and hangs. It takes half a
minute, and several on a busy machine. `increase` does not see what a counter had at its first scrape, so counts may lack the first round.
"""

from __future__ import annotations

from typing import NamedTuple

INFINITY = float("inf")
RUN = (0.01, 900)
"""Seconds: something that happened in the run."""
KIB = 1 << 10
MIB = 1 << 20
DURATION = (1e-5, 60)
ANY = "*"


class Expectation(NamedTuple):
    """The unit of a panel, or of each column of a table, and the range of each series; `*` stands for every other series.

    A series of `ranges` must be there, except if the panel may be empty for the reason `empty`.
    """

    unit: str | dict[str, str]
    ranges: dict[str, tuple[float, float]]
    empty: str = ""


def counts(empty: str = "", /, **ranges: tuple[float, float]) -> Expectation:
    return Expectation("locale", {name.replace("_", " "): each for name, each in ranges.items()}, empty)


def same_range(unit: str, low: float, high: float, empty: str = "") -> Expectation:
    """Return the expectation for a panel whose series all have the same range."""
    return Expectation(unit, {ANY: (low, high)}, empty)


TASKS = {
    "State": ("none", {"train": (2, 2), "late": (1, 1), "(no task)": (0, 0)}),
    "Last save": ("s", {"train": RUN, "late": RUN, "(no task)": RUN}),
    "Work at risk": ("s", {"train": RUN, "late": RUN}),
    "Interval": ("s", {"train": (3600, 3600), "late": (0.1, 0.1)}),
    "Lateness": ("percentunit", {"train": (0, 0.3), "late": (2.5, 9000)}),
    "Failed saves": ("locale", {"train": (3, 3), "late": (0, 0), "(no task)": (0, 0)}),
    "Failed reads": ("locale", {"train": (1, 1), "evaluate": (0, 0)}),
    "Verified": ("s", {"train": RUN, "evaluate": RUN}),
    "In flight": ("s", {"late": RUN}),
    "Running": ("locale", {"train": (1, 1), "late": (1, 1), "evaluate": (0, 0), "(no task)": (0, 0)}),
    "Last size": ("bytes", {"train": (KIB, MIB), "late": (100, KIB), "(no task)": (100, KIB)}),
}

OVERVIEW = {
    "Time since last good save": same_range("s", *RUN),
    "Consecutive failures": same_range("locale", 3, 3),
    "Work at risk": same_range("s", *RUN),
    "Save lateness": same_range("percentunit", 2.5, 9000),
    "Success ratio": same_range("percentunit", 0.8, 0.95),
    "Last verified": same_range("s", *RUN),
    "Consecutive failed reads": same_range("locale", 1, 1),
    "Corrupted": same_range("locale", 1, 3),
    "Altered states": same_range("locale", 0, 0),
    "In flight": same_range("locale", 1, 1),
    "Oldest in flight": same_range("s", *RUN),
    "Interrupted": same_range("locale", 1, 1.5),
    "Storage used": same_range("bytes", 4 * KIB, MIB),
    "Tasks": Expectation(
        {column: unit for column, (unit, _) in TASKS.items()},
        {f"{column}: {task}": each for column, (_, ranges) in TASKS.items() for task, each in ranges.items()},
    ),
    "Save state by task": Expectation("none", {"scraped · train": (2, 2), "scraped · late": (1, 1), "scraped · (no task)": (0, 0)}),
    "Time since last good save by job": Expectation("s", {"scraped": RUN}),
    "Save lateness by job": Expectation("percentunit", {"scraped": (2.5, 9000)}),
    "Saves by outcome": Expectation("locale", {"scraped · ok": (23, 40), "scraped · error": (3, 3.5), "scraped · interrupted": (1, 1.5)}),
}

OPERATIONS = {
    "Operations by outcome": counts(ok=(50, 110), error=(3, 5), interrupted=(1, 1.5)),
    "Errors by class": Expectation("locale", {"scraped · serialization": (3, 3.5), "scraped · interrupted": (1, 1.5), ANY: (1, 1.5)}),
    "Operations by type": counts(save=(27, 45), load=(1, 4), restore=(2, 4), delete=(1, 3), list=(1, 3), verify=(2, 5), prune=(20, 45)),
    "Task runs by outcome": counts(ok=(1, 3)),
    "Work lost by restores": Expectation("s", {"scraped · train": (0.1, 900)}),
    "Save duration percentiles": Expectation("s", {"p50": DURATION, "p95": DURATION, "p99": DURATION}),
    "95th percentile duration by operation": Expectation(
        "s", dict.fromkeys(("save", "load", "restore", "delete", "list", "verify", "prune"), DURATION)
    ),
    "Duration heatmap": same_range("locale", 50, 115),
    "Traces by duration": Expectation("s", {"slowest": DURATION, "p50": DURATION}),
    "Mean time by phase": Expectation("s", {**dict.fromkeys(("serialize", "compress", "write"), DURATION), ANY: (0, 60)}),
    "Duration by task": Expectation(
        {"p95": "s", "p50": "s", "Last": "s", "Operations": "locale"},
        {
            "p95: train · save": (1, 60),
            "p50: train · save": DURATION,
            "Last: train · save": DURATION,
            "Operations: train · save": (27, 45),
            **dict.fromkeys(("p95", "p50", "Last"), DURATION),
            "Operations": (1, 45),
        },
    ),
    "Throughput": Expectation("binBps", dict.fromkeys(("save", "load", "restore"), (100, 100 * MIB))),
    "Checkpoint size": Expectation("bytes", {"serialized": (100 * KIB, 20 * MIB), "stored": (200, MIB)}),
    "Compression ratio by task": Expectation({"Ratio": "suffix: ×"}, {"Ratio: train": (1, 2000), "Ratio: evaluate": (1, 2000)}),
    "CPU time by phase": Expectation("s", {"serialize": (1e-5, 10), ANY: (0, 10)}),
    "Disk I/O per operation": same_range("bytes", 0, 20 * MIB, "a file system in memory writes nothing to a disk"),
    "Peak memory": same_range("bytes", 10 * MIB, 2000 * MIB),
    "Async save times (95th percentile)": Expectation("s", dict.fromkeys(("blocked", "released", "pending", "durable"), (1e-4, 60))),
    "Async save times by task": Expectation(
        dict.fromkeys(("Durable", "Blocked", "Released", "Pending"), "s"),
        dict.fromkeys(("Durable: train", "Blocked: train", "Released: train", "Pending: train"), (1e-4, 60)),
    ),
    "Saves with a straggler": Expectation("locale", {"scraped · write": (1, 2.5)}),
    "Time waiting for stragglers": Expectation("s", {"scraped · write": (2.5, 6)}),
}

STORAGE = {
    "Storage used": same_range("bytes", 4 * KIB, MIB),
    "Storage growth": same_range("bytes", 4 * KIB, MIB),
    "Removed": same_range("locale", 20, 50),
    "Free space": same_range("bytes", MIB, 2**60),
    "Saves that fit": same_range("locale", 10, 2**50),
    "Time until full": same_range("s", 1, 366 * 86400, "depends on what else the test machine writes"),
    "Storage used by task": Expectation(
        "bytes", {"scraped · train": (4 * KIB, MIB), "scraped · late": (100, KIB), "scraped · (no task)": (100, KIB)}
    ),
    "Free space and forecast": same_range("bytes", -(2**50), 2**60),
    "Bytes saved and removed": Expectation("bytes", {"saved": (10 * KIB, 4 * MIB), "removed": (-4 * MIB, -10 * KIB)}),
    "Checkpoints removed": counts(delete=(1, 3), prune=(20, 45)),
    "Largest keys": Expectation(
        "bytes", {"history": (MIB, 20 * MIB), "weights": (300 * KIB, 2 * MIB), "step": (1, 10), "_other_": (1, 100)}
    ),
    "Key size over time": Expectation(
        "bytes", {"history": (MIB, 20 * MIB), "weights": (300 * KIB, 2 * MIB), "step": (1, 10), "_other_": (1, 100)}
    ),
    "Checkpoint size by task": Expectation(
        "bytes", {"scraped · train": (KIB, MIB), "scraped · late": (100, KIB), "scraped · (no task)": (100, KIB)}
    ),
    "State growth by task": Expectation("percentunit", {"scraped · train": (0.001, 5)}),
}

OBSERVABILITY = {
    "Dropped records": same_range("locale", 0, 0),
    "Delivery backlog": same_range("bytes", KIB, 16 * MIB),
    "Live processes": same_range("locale", 1, 1),
    "Dead processes": same_range("locale", 1, 1),
    "Retries": same_range("locale", 1, 1000),
    "Internal errors": same_range("locale", 0, 0),
    "Delivery backlog by instance": same_range("bytes", KIB, 16 * MIB),
    "Delivered spans": Expectation("suffix: spans/s", dict.fromkeys(("local", "prometheus", "otlp"), (0, 2000))),
    "Processes by state": counts(live=(1, 1), dead=(1, 1)),
    "Versions": Expectation({"Instances": "locale"}, {"Instances": (1, 1)}),
    "Dropped records by reason": same_range("locale", 0, 0, "nothing is dropped"),
    "Retries and refused spans": Expectation("locale", {"otlp retries": (1, 1000)}),
    "Recording fallbacks": same_range("locale", 0, 1000, "there are enough pages"),
    "Label limit exceeded": same_range("locale", 0, 0, "needs more than a hundred tasks"),
}

PANELS = {"overview": OVERVIEW, "operations": OPERATIONS, "storage": STORAGE, "observability": OBSERVABILITY}


def units(panel: dict) -> str | dict[str, str]:
    """Return the unit of a panel; of a table the unit of each column."""
    if panel["type"] != "table":
        return panel["fieldConfig"]["defaults"]["unit"]
    properties = {each["matcher"]["options"]: each["properties"] for each in panel["fieldConfig"]["overrides"]}
    return {column: each["value"] for column, settings in properties.items() for each in settings if each["id"] == "unit"}


def range_of(expectation: Expectation, series: str) -> tuple[float, float] | None:
    """Return the range of a series: its own, that of its column in a table, or that of every other series."""
    for key in (series, series.partition(":")[0], ANY):
        if key in expectation.ranges:
            return expectation.ranges[key]
    return None


def problems(expectation: Expectation, unit: str | dict[str, str], values: dict[str, float]) -> list[str]:
    """Return how a panel with this unit and these values by series differs from what is expected."""
    differences = [] if unit == expectation.unit else [f"unit {unit}, expected {expectation.unit}"]
    for series, value in values.items():
        expected = range_of(expectation, series)
        if expected is None:
            differences.append(f"{series}: not expected")
        elif not expected[0] <= value <= expected[1]:
            differences.append(f"{series}: {value} is not between {expected[0]} and {expected[1]}")
    if values or not expectation.empty:
        columns = {series.partition(":")[0] for series in values}
        missing = [key for key in expectation.ranges if key != ANY and key not in values and key not in columns]
        differences += [f"{key}: no value" for key in missing] + ([] if values else ["no value"])
    return differences
