"""Recommendations from statistics: each has its numbers, and appears only if they justify it."""

from __future__ import annotations

import pytest

from ckpt_observe.query import KeyGrowth, Lifetime, OperationStatistics, Quantiles, Statistics, TaskStatistics
from ckpt_observe.tuning import Assumptions, recommend

FIVE_DEATHS = (Lifetime(2000.0, died=True),) * 5


def constant(value, count=100):
    return Quantiles(count, value, value, value, value, value)


def statistics(*, phases=(), keys=(), ratios=None, interval=10.0, cost=1.0, lifetimes=FIVE_DEATHS, saves=100, restore=None):
    rows = [
        OperationStatistics(
            task_name="t",
            system="s",
            operation="save",
            outcomes={"ok": saves},
            error_codes={},
            seconds=constant(cost, saves),
            phase_seconds={name: constant(seconds, saves) for name, seconds in phases},
            stored_bytes=None,
        )
    ]
    if restore is not None:
        rows.append(
            OperationStatistics(
                task_name="t",
                system="s",
                operation="restore",
                outcomes={"ok": 1},
                error_codes={},
                seconds=constant(restore, 1),
                phase_seconds={},
                stored_bytes=None,
            )
        )
    task = TaskStatistics(
        task_name="t",
        system="s",
        runs=1,
        saves=saves,
        first_unix_nano=0,
        last_unix_nano=1,
        save_seconds=constant(cost, saves) if cost else None,
        interval_seconds=constant(interval, saves) if interval else None,
        interruptions=sum(lifetime.died for lifetime in lifetimes),
        observed_seconds=sum(lifetime.seconds for lifetime in lifetimes),
        lifetimes=tuple(lifetimes),
        compression_ratios=ratios or {},
        first_bytes=None,
        last_bytes=None,
        bytes_per_save=0.0,
        keys=tuple(
            KeyGrowth(name=name, saves=saves, first_bytes=0, last_bytes=size, max_bytes=size, bytes_per_save=growth)
            for name, size, growth in keys
        ),
    )
    return Statistics(operations=tuple(rows), tasks=(task,))


def advice(*, assumptions=None, **measurements):
    return {row.subject: row for row in recommend(statistics(**measurements), assumptions)}


def test_interval():
    """Five deaths in 10,000 s and saves of 1 s: every 62.6 s, and both losses are named."""
    row = advice()["interval"]
    assert row.action == "Save every 1m 03s of work."
    assert row.reason == (
        "A save holds up the program for 1.0 s, and 5 processes died in 2h 46m, one every 33m 20s on average. "
        "Saving every 10.0 s loses 9.3% of the run time; saving every 1m 03s loses 3.1%."
    )
    assert row.numbers["best_interval"] == pytest.approx(62.6, abs=0.1)
    assert row.numbers["lost_share"] > row.numbers["lost_share_at_best"]


def test_good_interval_is_kept():
    """An interval that loses at most 5 % more than the best one is good."""
    assert advice(interval=70.0)["interval"].action == "Keep the interval between saves."
    assert advice(interval=130.0)["interval"].action.startswith("Save every")


@pytest.mark.parametrize(
    ("measurements", "text"),
    [
        (
            {"lifetimes": [Lifetime(3000.0, died=False)]},
            "no process died in 50m 00s: the mean time between failures is 16m 40s or more, with 95 %",
        ),
        ({"assumptions": Assumptions(86400.0)}, "you say that a process dies every 24h 00m"),
        (
            {"lifetimes": [Lifetime(2000.0, died=True)]},
            "1 process died in 33m 20s, one every 33m 20s on average; so few tell it only roughly, and --mtbf replaces it.",
        ),
        ({"interval": 0.0}, "That loses 3.1% of the run time."),
    ],
    ids=["no death", "assumption", "few deaths", "one save"],
)
def test_interval_says_what_it_is_based_on(measurements, text):
    """Assumptions and bounds are named as such."""
    assert text in advice(**measurements)["interval"].reason


def test_recovery_time_is_measured():
    """The time of a restore counts; an assumption replaces it."""
    assert advice(restore=50.0)["interval"].numbers["recovery_seconds"] == 50
    assert advice(restore=50.0, assumptions=Assumptions(recovery_seconds=9.0))["interval"].numbers["recovery_seconds"] == 9


@pytest.mark.parametrize("measurements", [{"saves": 2}, {"cost": 0.0}], ids=["few saves", "no cost"])
def test_nothing_to_recommend(measurements):
    """Without measurements, there is no advice."""
    assert advice(**measurements) == {}


def test_phase():
    """A phase that takes most of a save is named with its share, one that does not is not."""
    row = advice(phases=[("write", 0.7), ("serialize", 0.2)])["phase"]
    assert row.reason == "The phase write takes 700 ms of a save of 1.0 s (70%)."
    assert row.numbers == {"phase_seconds": pytest.approx(0.7), "share": pytest.approx(0.7)}
    assert "phase" not in advice(phases=[("write", 0.4), ("serialize", 0.3)])


@pytest.mark.parametrize(
    ("ratio", "compress", "write", "is_recommended"), [(1.05, 0.5, 0.1, True), (3.0, 0.5, 0.1, False), (1.1, 0.001, 0.9, False)]
)
def test_codec(ratio, compress, write, is_recommended):
    """Compression is turned off if it hardly shrinks the state and takes longer than writing the rest would."""
    rows = advice(phases=[("compress", compress), ("write", write)], ratios={"gzip": constant(ratio)})
    assert ("codec" in rows) == is_recommended
    if is_recommended:
        assert "gzip shrinks the state only 1.1 times and takes 500 ms per save." in rows["codec"].reason
        assert rows["codec"].numbers["saved_seconds"] == pytest.approx(compress - write * (ratio - 1))


def test_key():
    """A key with most of the bytes is named with its share and growth; small states are left alone."""
    row = advice(keys=[("messages", 900_000, 3000.0), ("plan", 100_000, 0.0)])["key"]
    assert row.reason == "The key 'messages' has 900 kB of 1.0 MB (90%) and grows by 3.0 kB per save."
    assert "key" not in advice(keys=[("messages", 900, 3.0)])
    assert "key" not in advice(keys=[("a", 400_000, 0.0), ("b", 350_000, 0.0), ("c", 300_000, 0.0)])


@pytest.mark.parametrize(("deaths", "verdict"), [(0, "No process died"), (1, "1 process died"), (4, "4 processes died"), (5, None)])
def test_short_runs_say_nothing_about_failures(deaths, verdict):
    """Runs of seconds with few deaths give no interval, but the way to get one. With a known time between failures, they do."""
    short = [Lifetime(1.0, died=number < deaths) for number in range(5)]
    row = advice(lifetimes=short)["interval"]
    if verdict is None:
        assert row.action.startswith("Save every")
    else:
        assert row.action == "Observe longer runs, or give the mean time between failures with --mtbf."
        assert row.reason == f"{verdict} in 5.0 s, which is too short to tell how often one does."
    assert advice(lifetimes=short, assumptions=Assumptions(3600.0))["interval"].action.startswith("Save every")
