"""All metrics at one moment."""

from __future__ import annotations

import pytest

from ckpt_observe.journal.live import Live, Running
from ckpt_observe.metricstore.snapshot import snapshot
from ckpt_observe.metricstore.store import MetricStore
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import LABEL_VALUES
from ckpt_observe.semconv.values import ERROR_CLASSES
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree


@pytest.fixture
def store(tmp_path):
    store = MetricStore(tmp_path / "metrics.db")
    yield store
    store.close()


def series(store, spec, running=()):
    return {found.name: values for found, values in snapshot(store.read(), Live(list(running)), "1")}.get(spec.name, {})


def operation(number, name, **attributes):
    given = {names.OPERATION: name, names.OUTCOME: "ok", names.TASK_NAME: "demo", **attributes}
    return make_span(number, f"checkpoint.{name}", attributes=given)


def running(kind, name, task, start=START_UNIX_NANO):
    return Running(kind, name, start, "", "", {names.TASK_NAME: task})


def test_nothing_happened_yet(store):
    """An empty store serves its version, and our own counters at zero: silence is not absence."""
    assert series(store, metrics.BUILD) == {("1",): 1.0}
    assert {labels: point.value for labels, point in series(store, metrics.DROPPED).items()} == {(reason,): 0 for reason in metrics.DROP_REASONS}
    assert series(store, metrics.LAST_SUCCESS) == {}


def test_every_outcome_and_class_is_there_from_the_first_operation(store):
    """A first failure is an increase, not a new series."""
    store.fold(make_tree(1))
    found = {labels[1:3]: point.value for labels, point in series(store, metrics.OPERATIONS).items()}
    assert {failure for outcome, failure in found if outcome == "error"} == set(ERROR_CLASSES) - {"interrupted", "cancelled"}
    assert found["ok", ""] == 1
    assert sum(found.values()) == 1
    assert found["interrupted", "interrupted"] == 0


def test_never_succeeded_has_no_last_success(store):
    """First attempt without last success is how an alert knows that it never worked."""
    store.fold(make_tree(1, outcome="error"))
    assert series(store, metrics.LAST_SUCCESS) == {}
    assert list(series(store, metrics.FIRST_ATTEMPT)) == [("save", "demo")]
    assert series(store, metrics.CONSECUTIVE_FAILURES) == {("save", "demo"): 1.0}


@pytest.mark.parametrize(
    ("spans", "verified"),
    [
        ([operation(2, "verify")], True),
        ([operation(2, "verify", **{names.DAMAGED: 1})], False),
        ([make_span(1, "checkpoint.validate", attributes={names.PHASE: "validate"}), operation(2, "restore")], True),
        ([operation(2, "restore")], False),
        ([make_span(1, "checkpoint.validate", attributes={names.PHASE: "validate"}), operation(2, "save")], False),
    ],
    ids=["verify", "verify with findings", "restore that validated", "restore on trust", "save that validated"],
)
def test_last_verified_restore(store, spans, verified):
    """Only what was read back and checked shows that we could go on from it."""
    store.fold(spans)
    assert list(series(store, metrics.LAST_VERIFIED)) == ([("demo",)] if verified else [])


def test_corruption_and_deletions(store):
    """A failed check and what a verify found are corruption; a prune deletes as many as it says."""
    bad = {names.OUTCOME: "error", names.ERROR_CLASS: "integrity"}
    store.fold([operation(1, "load", **bad), operation(2, "verify", **{names.DAMAGED: 3}), operation(3, "prune", **{names.COUNT: 4}), operation(4, "delete")])
    assert {labels: point.value for labels, point in series(store, metrics.CORRUPTION).items()} == {("load", "demo"): 1, ("verify", "demo"): 3}
    assert {labels: point.value for labels, point in series(store, metrics.DELETED).items()} == {("prune", "demo"): 4, ("delete", "demo"): 1}


def test_in_flight_and_its_age(store):
    """What runs is counted and the oldest start told; what is known and does not run is zero."""
    store.fold(make_tree(1))
    now = [running("operation", "restore", "demo", START_UNIX_NANO + 5 * 10**9), running("operation", "restore", "demo"), running("task", "demo", "demo")]
    assert series(store, metrics.IN_FLIGHT, now) == {("save", "demo"): 0.0, ("restore", "demo"): 2.0}
    assert series(store, metrics.OLDEST_START, now) == {("restore", "demo"): START_UNIX_NANO / 1e9}
    assert series(store, metrics.TASKS_IN_FLIGHT, now) == {("demo",): 1.0}


def test_in_flight_is_bounded(store):
    """Twenty thousand tasks at once are few series."""
    now = [running(kind, "save", f"task-{number}") for number in range(10_000) for kind in ("task", "operation")]
    for spec in (metrics.IN_FLIGHT, metrics.OLDEST_START, metrics.TASKS_IN_FLIGHT):
        assert len(series(store, spec, now)) <= LABEL_VALUES + 2
    assert sum(series(store, metrics.IN_FLIGHT, now).values()) == 10_000


def test_resources_and_sizes(store):
    """CPU, I/O, memory, sizes, throughput and the age of what was restored, each where it belongs."""
    used = {names.CPU_TIME: 0.5, names.IO_WRITE: 4096, names.MEMORY_PEAK: 1 << 20, names.SIZE_STORED: 800, names.THROUGHPUT: 1e6}
    store.fold([operation(1, "save", **used), operation(2, "save", **used), operation(3, "restore", **{names.SOURCE_AGE: 90.0})])
    assert series(store, metrics.CPU_TIME)["save", "demo"].value == 1.0
    assert series(store, metrics.IO)["save", "write", "demo"].value == 8192
    assert series(store, metrics.MEMORY_PEAK) == {("save", "demo"): float(1 << 20)}
    assert series(store, metrics.LAST_SIZE) == {("stored", "demo"): 800.0}
    assert series(store, metrics.SIZE)["stored", "save", "demo"].sum == 1600
    assert series(store, metrics.RESTORE_AGE)["demo",].sum == 90
    assert sum(series(store, metrics.THROUGHPUT)["save",].counts) == 2
