"""The metric store: the totals of all processes on disk."""

from __future__ import annotations

import os
import sqlite3
import stat

import msgspec
import pytest

from ckpt_observe.metricstore import metric_store as module
from ckpt_observe.metricstore.metric_store import MetricStore
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import LABEL_VALUES, OTHER
from ckpt_observe.testing.spans import make_span, make_tree


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.db"


@pytest.fixture
def store(path):
    store = MetricStore(path)
    yield store
    store.close()


def operations(store):
    """Counts by (operation, outcome)."""
    counts = {}
    for labels, point in store.read().points.get(metrics.OPERATIONS.name, {}).items():
        counts[labels[:2]] = counts.get(labels[:2], 0) + point.value
    return counts


def save(number, **attributes):
    attributes = {names.OPERATION: "save", names.OUTCOME: "ok", names.TASK_NAME: "demo", **attributes}
    return make_span(number, "checkpoint.save", attributes=attributes)


def test_counts_by_outcome(store):
    """Each operation is counted once under its outcome; the task is counted as a task."""
    store.add_spans(make_tree(1, operations=("save", "save", "restore"), outcome="error"))
    assert operations(store) == {("save", "ok"): 2, ("restore", "error"): 1}
    assert {labels: point.value for labels, point in store.read().points[metrics.TASKS.name].items()} == {("demo", "ok"): 1}


def test_repeated_batch_counts_once(store):
    """A batch that is delivered again, as after a death between commit and cursor update, changes nothing."""
    store.add_spans(make_tree(1))
    before = store.read()
    store.add_spans(make_tree(1))
    assert store.read() == before


def test_overlapping_batches_count_only_new_operations(store):
    """A delivery that restarts may divide the records into other batches."""
    store.add_spans([*make_tree(1), *make_tree(2)])
    store.add_spans([*make_tree(2), *make_tree(3)])
    assert operations(store) == {("save", "ok"): 3}


def test_repeat_by_another_process_counts_once(store, path):
    """A process that adopts a journal does not count its operations again."""
    store.add_spans(make_tree(1))
    other = MetricStore(path)
    other.add_spans(make_tree(1))
    other.close()
    assert operations(store) == {("save", "ok"): 1}


def test_deduplication_is_bounded(store, path, monkeypatch):
    """Only the ids of the last operations are stored."""
    monkeypatch.setattr(module, "DEDUPLICATED_OPERATIONS", 10)
    store.add_spans([save(number) for number in range(1, 100)])
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM seen").fetchone() == (10,)
    database.close()


def test_two_connections_add_up(store, path):
    """Several processes add to the same totals."""
    other = MetricStore(path)
    for number in range(1, 11):
        (store if number % 2 else other).add_spans([save(number)])
    other.close()
    assert operations(store) == {("save", "ok"): 10}


def test_restart_keeps_everything(store, path):
    """Counters, buckets, exemplars and timestamps are the same after a restart."""
    store.add_spans(make_tree(1, operations=("save", "restore"), outcome="error"))
    before = store.read()
    store.close()
    again = MetricStore(path)
    assert again.read() == before
    again.close()


def test_phase_below_a_foreign_span(store):
    """A phase whose parent is a span of another library is counted with its operation."""
    phase = make_span(3, "checkpoint.write", parent=99, attributes={names.PHASE: "write", names.OUTCOME: "ok"})
    store.add_spans([phase, save(2)])
    assert list(store.read().points[metrics.PHASE_DURATION.name]) == [("save", "write")]


def test_exemplars_refer_to_counted_spans(store):
    """Buckets of operations and phases, and counters, refer to spans that were counted."""
    spans = make_tree(7)
    store.add_spans(spans)
    points = store.read().points
    real = {(span.trace_id, span.span_id) for span in spans}
    exemplars = [
        each
        for name in (metrics.OPERATION_DURATION.name, metrics.PHASE_DURATION.name)
        for point in points[name].values()
        for each in point.exemplars.values()
    ]
    exemplars += [point.exemplar for point in points[metrics.OPERATIONS.name].values()]
    assert len(exemplars) >= 4
    assert {(each.trace_id, each.span_id) for each in exemplars} <= real


def test_batch_of_counted_and_new_operations(store):
    """Of a batch in which some operations were counted before, in any place, exactly the others are counted."""
    store.add_spans([save(number) for number in range(1, 300, 3)])
    store.add_spans([save(number) for number in range(1, 1201)])
    assert operations(store) == {("save", "ok"): 1200}


def test_label_values_of_any_type(store):
    """Values that other programs set become text: those that Python considers equal keep their own labels, and a list is no error."""
    store.add_spans([save(number, **{names.STORE: value}) for number, value in enumerate([1, True, 1.0, "1", [1], [1]], 1)])
    points = store.read().points[metrics.OPERATIONS.name]
    assert {labels[4]: point.value for labels, point in points.items()} == {"1": 2, "True": 1, "1.0": 1, "[1]": 2}


@pytest.mark.parametrize(("id", "is_learnt"), [("/runs/last.pt", True), ("checkpoint-7", False)])
def test_interval_of_saves_to_the_same_path(store, id, is_learnt):
    """A program may save to one path again and again, so the interval is learnt. Several saves of one id are parts of one save."""
    store.add_spans([save(number, **{names.ID: id, names.RUN_ID: "r"}) for number in range(1, 60, 9)])
    assert bool(store.read().statuses["save", "demo"].interval) is is_learnt


def test_times_of_async_saves(store):
    """Blocked, released and durable times are histograms by system and task. A failed save was never durable; a sync save has no times."""
    times = {names.SYSTEM: "torch.dcp", names.ASYNC_BLOCKED: 3.0, names.ASYNC_RELEASED: 2.0}
    store.add_spans([save(1), save(2, **times, **{names.ASYNC_DURABLE: 9.0}), save(3, **times, **{names.OUTCOME: "error"})])
    points = store.read().points
    sums = {spec.name: points[spec.name]["torch.dcp", "demo"].sum for spec in (metrics.ASYNC_BLOCKED, metrics.ASYNC_RELEASED)}
    assert sums == {"checkpoint.async.blocked": 6.0, "checkpoint.async.released": 4.0}
    assert points[metrics.ASYNC_DURABLE.name]["torch.dcp", "demo"].sum == 9.0
    assert points[metrics.ASYNC_PENDING.name]["torch.dcp", "demo"].sum == 7.0


def test_delays_by_stragglers(store):
    """The delay by a slow rank is a histogram by phase and task, without the rank."""
    straggler = {names.STRAGGLER_RANK: 7, names.STRAGGLER_DELAY: 2.5}
    phases = ("write", "stage", "write")
    store.add_spans([save(1), *(save(n, **straggler, **{names.STRAGGLER_PHASE: phase}) for n, phase in enumerate(phases, 2))])
    delays = store.read().points[metrics.STRAGGLER_DELAY.name]
    assert {labels: point.sum for labels, point in delays.items()} == {("write", "demo"): 5.0, ("stage", "demo"): 2.5}


def test_series_of_20_000_tasks_are_bounded(store, path):
    """A hundred task names have their own series; all others share `_other_` and are counted as overflow."""
    for batch in range(20):
        store.add_spans(
            [
                save(number, **{names.TASK_NAME: f"task-{number}", names.TASK_ID: f"run-{number}"})
                for number in range(1 + batch * 1000, 1001 + batch * 1000)
            ]
        )
    points = store.read().points
    tasks = {labels[-1] for labels in points[metrics.OPERATIONS.name]}
    assert len(tasks) == LABEL_VALUES + 1
    assert OTHER in tasks
    assert operations(store) == {("save", "ok"): 20_000}
    assert points[metrics.LABEL_OVERFLOW.name]["task",].value == 20_000 - LABEL_VALUES
    assert sum(len(series) for series in points.values()) < 5 * (LABEL_VALUES + 1)


def test_unused_names_make_room(store, path, monkeypatch):
    """In a full set, a name unused for a month is removed with all its series. A name in use by any process stays."""
    monkeypatch.setattr(module.time, "time", lambda: 1000 * 86400.0)
    names_of = lambda: {labels[-1] for labels in store.read().points[metrics.OPERATIONS.name]}  # noqa: E731
    store.add_spans([save(number, **{names.TASK_NAME: f"old-{number}", names.SIZE_STORED: 8}) for number in range(1, LABEL_VALUES + 1)])
    monkeypatch.setattr(module.time, "time", lambda: 1020 * 86400.0)
    other = MetricStore(path)
    other.add_spans([save(1001, **{names.TASK_NAME: "old-7"})])
    other.close()
    store.add_spans([save(1002, **{names.TASK_NAME: "new"})])
    assert "new" not in names_of()
    monkeypatch.setattr(module.time, "time", lambda: 1040 * 86400.0)
    store.add_spans([save(1003, **{names.TASK_NAME: "new"}), save(1004, **{names.TASK_NAME: "old-8"})])
    stored = store.read()
    assert {"new", "old-7", "old-8", OTHER} < names_of()
    assert len(names_of()) == LABEL_VALUES + 1
    [removed] = {f"old-{number}" for number in range(1, LABEL_VALUES + 1)} - names_of()
    assert removed not in {label for series in stored.points.values() for labels in series for label in labels}
    assert ("save", removed) not in stored.statuses


@pytest.mark.parametrize("value", ["big", -1, float("nan"), float("inf"), 10**400, None, [1]], ids=str)
def test_invalid_sizes_are_ignored(store, value):
    """An attribute of the wrong type does not change any total."""
    store.add_spans([save(1, **{names.SIZE_STORED: value, names.CPU_TIME: value, names.COUNT: value, names.INTERVAL: value})])
    assert operations(store) == {("save", "ok"): 1}
    assert metrics.SIZE.name not in store.read().points


def test_values_outside_closed_sets_become_other(store):
    """Outcomes and error classes that a library invents do not add series."""
    store.add_spans([save(number, **{names.OUTCOME: f"own-{number}", names.ERROR_CLASS: f"own-{number}"}) for number in range(1, 50)])
    assert operations(store) == {("save", OTHER): 49}


def test_failed_batch_counts_nothing(store):
    """If one span cannot be counted, none of its batch is."""
    broken = msgspec.structs.replace(save(2), trace_id="no hex")
    with pytest.raises(ValueError):
        store.add_spans([save(1), broken])
    assert operations(store) == {}


def test_file_is_private(store, path):
    """Only the owner can read the file."""
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_newer_file_is_rejected(path):
    """A file of a newer version is not used."""
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(sqlite3.DatabaseError, match="newer"):
        MetricStore(path)
