"""A task counts the operations that end within it, by kind."""

from __future__ import annotations

import sys
import threading

import pytest

import ckpt_observe
from ckpt_observe.record.operation_counts import OperationCounts
from ckpt_observe.semconv import attributes as names

COUNTS = (names.TASK_OPERATIONS, names.TASK_COUNTS, names.TASK_FAILURES, names.TASK_STORED)


def save(size=None, name="save"):
    with ckpt_observe.checkpoint(name) as operation:
        if size is not None:
            operation.set({names.SIZE_STORED: size})


def fail():
    with pytest.raises(OSError), ckpt_observe.checkpoint("save") as operation:
        operation.set({names.SIZE_STORED: 1_000})
        raise OSError(28, "No space left")


def counts_of(recording, task):
    [span] = [span for span in recording.spans() if span.name == f"task {task}"]
    return [span.attributes.get(name) for name in COUNTS]


def test_counts_by_kind(recording):
    """The task has the number and failures of each kind, and the bytes that were stored: not those of failed saves and of loads."""
    with ckpt_observe.task("train"):
        save(100)
        save(20)
        fail()
        save(120, "load")
    assert counts_of(recording, "train") == [["save", "load"], [3, 1], [1, 0], 120]


def test_task_without_operations(recording):
    """A task without operations has none of the attributes."""
    with ckpt_observe.task("idle"):
        pass
    assert counts_of(recording, "idle") == [None] * 4


def test_failed_task(recording):
    """A task that fails has its counts, too."""
    with pytest.raises(ValueError), ckpt_observe.task("train"):
        save(100)
        raise ValueError
    assert counts_of(recording, "train") == [["save"], [1], [0], 100]


def test_nested_operation_is_part_of_the_outer_one(recording):
    """A prune inside a save is not counted, as it is no line of its own in a summary."""
    with ckpt_observe.task("train"), ckpt_observe.checkpoint("save"):
        save(name="prune")
    assert counts_of(recording, "train") == [["save"], [1], [0], 0]


def test_nested_task(recording):
    """An operation counts in its task and in the tasks around it."""
    with ckpt_observe.task("outer"):
        save(1)
        with ckpt_observe.task("inner"):
            save(2)
    assert counts_of(recording, "inner") == [["save"], [1], [0], 2]
    assert counts_of(recording, "outer") == [["save"], [2], [0], 3]


def test_thread_without_context(recording):
    """An operation of a thread that lost the context counts in the task that it is assigned to."""
    with ckpt_observe.task("train"):
        thread = threading.Thread(target=save, args=(5,))
        thread.start()
        thread.join()
    assert counts_of(recording, "train") == [["save"], [1], [0], 5]


def test_skipped_operation(recording):
    """An operation that did nothing does not count."""
    with ckpt_observe.task("train"), ckpt_observe.checkpoint("save") as operation:
        operation.set({names.OUTCOME: "skipped"})
    assert counts_of(recording, "train") == [None] * 4


def test_no_count_is_lost_between_threads():
    """Counts of threads that are interrupted at every instruction add up."""
    counts, interval = OperationCounts(), sys.getswitchinterval()

    def work():
        for _ in range(5_000):
            counts.add("save", None, 2)
            counts.add("load", "error", 2)

    threads = [threading.Thread(target=work) for _ in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert list(counts.attributes().values()) == [["load", "save"], [40_000, 40_000], [40_000, 0], 80_000]
