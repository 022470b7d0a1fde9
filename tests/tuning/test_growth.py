"""Growth of tasks, and when a disk is full."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest

from ckpt_observe.core import Checkpointer
from ckpt_observe.tuning.growth import TaskGrowth, measure_tasks, seconds_until_full

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def infos():
    """Ten checkpoints, one per minute, whose key grows by ten bytes each."""
    with Checkpointer("memory://") as checkpointer:
        saved = [checkpointer.save("run", {"text": "x" * (100 + 10 * step)}, id=f"{step}", step=step) for step in range(10)]
    return [msgspec.structs.replace(info, created=START + step * dt.timedelta(minutes=1)) for step, info in enumerate(saved)]


def test_growth_is_measured(infos):
    """Rate, growth and keys are exact for a steady task, whatever the order of the headers."""
    [growth] = measure_tasks(reversed(infos))
    assert (growth.checkpoints, growth.seconds_between) == (10, 60)
    assert growth.stored_size == sum(info.stored_size for info in infos)
    assert growth.bytes_per_checkpoint == pytest.approx(10, rel=0.1), "headers grow a little, too"
    assert growth.bytes_per_day == growth.last_size * 1440
    assert (growth.keys[0].name, growth.keys[0].bytes_per_save) == ("text", pytest.approx(10))


@pytest.mark.parametrize("growth", [0.0, 5.0, 100.0])
def test_forecast_agrees_with_writing_until_full(growth):
    """The forecast is the moment at which a program that goes on saving fills the disk, within two saves."""
    tasks = [TaskGrowth(task="a", checkpoints=9, stored_size=0, last_size=1000, seconds_between=10.0, bytes_per_checkpoint=growth)]
    free, used, saves = 1_000_000, 0.0, 0
    while used < free:
        saves += 1
        used += 1000 + growth * saves
    assert seconds_until_full(free, tasks) == pytest.approx(saves * 10, abs=20)


def test_forecast_needs_a_rate():
    """One checkpoint has no rate. Tasks that shrink count with their present size."""
    single = TaskGrowth(task="a", checkpoints=1, stored_size=10, last_size=10)
    assert seconds_until_full(100, [single]) is None
    shrinking = TaskGrowth(task="b", checkpoints=3, stored_size=10, last_size=10, seconds_between=100.0, bytes_per_checkpoint=-5.0)
    assert seconds_until_full(100, [single, shrinking]) == 1000


def test_a_first_try_has_no_rate(infos):
    """Ten saves within milliseconds do not say that the disk is full in minutes."""
    tries = [msgspec.structs.replace(info, created=START + number * dt.timedelta(milliseconds=5)) for number, info in enumerate(infos)]
    [growth] = measure_tasks(tries)
    assert (growth.seconds_between, growth.bytes_per_day) == (0.005, None)
    assert seconds_until_full(10**12, [growth]) is None
