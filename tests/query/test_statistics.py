"""Statistics over many operations."""

from __future__ import annotations

import random

from ckpt_observe.query import ObservedOperation, ObservedPhase, Quantiles
from ckpt_observe.query.statistics import collect_statistics
from ckpt_observe.semconv import attributes as names

SECOND = 1_000_000_000


def make_operation(start, seconds=1.0, *, name="save", outcome="ok", task="train", process="p1", phases=(), **attributes):
    end = start * SECOND + round(seconds * SECOND)
    return ObservedOperation(
        kind="operation",
        name=name,
        trace_id="0",
        span_id=str(start),
        parent_span_id="",
        start_unix_nano=start * SECOND,
        end_unix_nano=end,
        outcome=outcome,
        attributes={names.TASK_NAME: task, names.TASK_ID: f"{task}-1", names.SYSTEM: "reference", **attributes},
        resource={"service.instance.id": process},
        phases=tuple(
            ObservedPhase(name=phase, span_id="1", parent_span_id="0", start_unix_nano=0, end_unix_nano=SECOND * length, outcome="ok")
            for phase, length in phases
        ),
    )


def test_quantiles_are_values_that_occurred():
    """Quantiles of 1..101 are known exactly; nothing has none."""
    values = [float(value) for value in range(1, 102)]
    random.Random(1).shuffle(values)
    assert Quantiles.of(values) == Quantiles(101, 51.0, 51.0, 91.0, 100.0, 101.0)
    assert Quantiles.of([]) is None


def test_operations_are_counted_by_outcome_and_timed_if_they_succeed():
    """Failures count, with their code, but do not distort durations."""
    operations = [
        make_operation(0, 1, phases=[("write", 1)]),
        make_operation(10, 3, phases=[("write", 2)]),
        make_operation(20, 100, outcome="error", **{names.ERROR_CODE: "capacity.disk_full"}),
        make_operation(30, name="load"),
    ]
    save, load = collect_statistics(operations).operations
    assert (save.operation, save.outcomes, save.error_codes) == ("save", {"ok": 2, "error": 1}, {"capacity.disk_full": 1})
    assert (save.seconds.mean, save.seconds.max, save.phase_seconds["write"].max) == (2.0, 3.0, 2.0)
    assert (load.operation, load.outcomes) == ("load", {"ok": 1})


def test_growth_of_saves_and_keys():
    """The slope of the stored size and of each key is exact for a straight line, whatever the order of the operations."""
    operations = [
        make_operation(
            step, **{names.SIZE_STORED: 1000 + 10 * step, names.KEY_NAMES: ["messages", "plan"], names.KEY_SIZES: [500 + 10 * step, 40]}
        )
        for step in range(20)
    ]
    random.Random(1).shuffle(operations)
    [task] = collect_statistics(operations).tasks
    assert (task.first_bytes, task.last_bytes, round(task.bytes_per_save, 6)) == (1000, 1190, 10.0)
    assert [(key.name, key.last_bytes, round(key.bytes_per_save, 6)) for key in task.keys] == [("messages", 690, 10.0), ("plan", 40, 0.0)]


def test_a_larger_run_is_not_growth():
    """Runs with states of different sizes, one after the other or side by side, do not grow if none of them does."""
    small = [make_operation(step, **{names.SIZE_STORED: 10, names.KEY_NAMES: ["x"], names.KEY_SIZES: [5]}) for step in range(4)]
    large = [
        make_operation(step, **{names.TASK_ID: "train-2", names.SIZE_STORED: 10_000, names.KEY_NAMES: ["x"], names.KEY_SIZES: [9_000]})
        for step in range(2, 8)
    ]
    [task] = collect_statistics([*small, *large]).tasks
    assert (task.bytes_per_save, task.keys[0].bytes_per_save, task.runs) == (0.0, 0.0, 2)


def test_interval_and_interruptions_are_per_process():
    """The pause between two processes is not an interval, and a process that dies counts once, however much it was doing."""
    operations = [make_operation(start, process="p1") for start in (0, 10, 20)]
    operations += [
        make_operation(30, process="p1", outcome="interrupted"),
        make_operation(30, process="p1", name="load", outcome="interrupted"),
    ]
    operations += [make_operation(start, process="p2") for start in (1000, 1010)]
    [task] = collect_statistics(operations).tasks
    assert (task.saves, task.runs, task.interruptions) == (5, 1, 1)
    assert (task.interval_seconds.count, task.interval_seconds.max) == (3, 9.0)
    assert task.observed_seconds == 31 + 11


def test_async_save_costs_what_it_blocks():
    """The cost of an async save is the time for which it held up the program."""
    [task] = collect_statistics([make_operation(0, 60, **{names.ASYNC_BLOCKED: 0.5})]).tasks
    assert task.save_seconds.max == 0.5


def test_attributes_of_other_types_do_not_matter():
    """A program can set any attribute; statistics leave out what they do not understand."""
    hostile = {
        names.SIZE_STORED: "large",
        names.KEY_NAMES: "messages",
        names.KEY_SIZES: [None],
        names.ASYNC_BLOCKED: "x",
        names.ERROR_CODE: 7,
    }
    [task] = collect_statistics([make_operation(0, **hostile)]).tasks
    assert (task.saves, task.keys, task.last_bytes) == (1, (), None)
