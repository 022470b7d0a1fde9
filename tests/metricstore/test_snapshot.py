"""Snapshots: all metrics at one moment."""

from __future__ import annotations

import msgspec
import pytest

from ckpt_observe.journal.activity import Activity, RunningOperation
from ckpt_observe.metricstore.metric_store import MetricStore
from ckpt_observe.metricstore.snapshot import build_snapshot
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import metrics
from ckpt_observe.semconv.metrics import LABEL_VALUES, LARGEST_KEYS, OTHER
from ckpt_observe.semconv.values import ERROR_CLASSES
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree


@pytest.fixture
def store(tmp_path):
    store = MetricStore(tmp_path / "metrics.db")
    yield store
    store.close()


def series(store, spec, running=(), space=None):
    snapshot = build_snapshot(store.read(), Activity(list(running)), "1", space or {})
    return next((points for each, points in snapshot if each is spec), {})


def operation(number, name, **attributes):
    attributes = {names.OPERATION: name, names.OUTCOME: "ok", names.TASK_NAME: "demo", **attributes}
    return make_span(number, f"checkpoint.{name}", attributes=attributes)


def running(kind, name, task, start=START_UNIX_NANO):
    return RunningOperation(kind, name, start, "", "", {names.TASK_NAME: task})


def test_empty_store(store):
    """An empty store gives the version and our own counters at zero."""
    assert series(store, metrics.BUILD) == {("1",): 1.0}
    assert {labels: point.value for labels, point in series(store, metrics.DROPPED_RECORDS).items()} == {
        (reason,): 0 for reason in metrics.DROP_REASONS
    }
    assert series(store, metrics.LAST_SUCCESS) == {}


def test_all_outcomes_and_classes_exist_from_the_first_operation(store):
    """The first failure is an increase of an existing series."""
    store.add_spans(make_tree(1))
    counts = {labels[1:3]: point.value for labels, point in series(store, metrics.OPERATIONS).items()}
    assert {error_class for outcome, error_class in counts if outcome == "error"} == set(ERROR_CLASSES) - {"interrupted", "cancelled"}
    assert counts["ok", ""] == 1
    assert sum(counts.values()) == 1
    assert counts["interrupted", "interrupted"] == 0


def test_damage_found_by_the_first_restore_is_an_increase(store):
    """A task that has only saved has series for what its first restore may find; otherwise dashboards would show no damage."""
    store.add_spans([operation(1, "save")])
    for spec in (metrics.CORRUPTION, metrics.ALTERED_KEYS):
        assert {labels: point.value for labels, point in series(store, spec).items()} == {
            (each, "demo"): 0 for each in ("load", "restore", "verify", "drill")
        }


def test_never_succeeded_has_no_last_success(store):
    """A first attempt without a last success tells an alert that no save ever worked."""
    store.add_spans(make_tree(1, outcome="error"))
    assert series(store, metrics.LAST_SUCCESS) == {}
    assert list(series(store, metrics.FIRST_ATTEMPT)) == [("save", "demo")]
    assert series(store, metrics.CONSECUTIVE_FAILURES) == {("save", "demo"): 1.0}


@pytest.mark.parametrize(
    ("spans", "verified"),
    [
        ([operation(2, "verify")], True),
        ([operation(2, "verify", **{names.DAMAGED_COUNT: 1})], False),
        ([make_span(1, "checkpoint.validate", attributes={names.PHASE: "validate"}), operation(2, "restore")], True),
        ([operation(2, "restore")], False),
        ([operation(2, "verify", **{names.ALTERED_KEYS: ["lr"]})], False),
        ([make_span(1, "checkpoint.validate", attributes={names.PHASE: "validate"}), operation(2, "save")], False),
        ([operation(2, "load", **{names.COMPARED: True})], True),
        ([operation(2, "load", **{names.COMPARED: True, names.ALTERED_KEYS: ["lr"]})], False),
    ],
    ids=[
        "verify",
        "verify with findings",
        "restore that validated",
        "restore on trust",
        "verify with an altered key",
        "save that validated",
        "load that was compared",
        "load that was compared and differs",
    ],
)
def test_last_verified_restore(store, spans, verified):
    """Only a checkpoint that was read back and checked counts as verified."""
    store.add_spans(spans)
    assert list(series(store, metrics.LAST_VERIFIED)) == ([("demo",)] if verified else [])


def test_corruption_and_deletions(store):
    """Failed checks and damage found by `verify` count as corruption; a prune counts the checkpoints that it reports."""
    bad = {names.OUTCOME: "error", names.ERROR_CLASS: "integrity"}
    store.add_spans(
        [
            operation(1, "load", **bad),
            operation(2, "verify", **{names.DAMAGED_COUNT: 3}),
            operation(3, "prune", **{names.COUNT: 4}),
            operation(4, "delete"),
            operation(5, "restore", **bad, **{names.DAMAGED_COUNT: 2}),
        ]
    )
    assert {labels: point.value for labels, point in series(store, metrics.CORRUPTION).items()} == {
        ("load", "demo"): 1,
        ("restore", "demo"): 2,
        ("verify", "demo"): 3,
        ("drill", "demo"): 0,
    }
    assert {labels: point.value for labels, point in series(store, metrics.DELETED_CHECKPOINTS).items()} == {
        ("prune", "demo"): 4,
        ("delete", "demo"): 1,
    }


def test_altered_keys(store):
    """Each key that differs from what was saved is counted, for any operation and type of the attribute, with the time."""
    store.add_spans(
        [
            operation(1, "restore", **{names.ALTERED_KEYS: ["lr", "step"]}),
            operation(2, "load"),
            operation(3, "verify", **{names.ALTERED_KEYS: 7}),
        ]
    )
    assert {labels: point.value for labels, point in series(store, metrics.ALTERED_KEYS).items()} == {
        ("restore", "demo"): 2,
        ("load", "demo"): 0,
        ("verify", "demo"): 1,
        ("drill", "demo"): 0,
    }
    assert sorted(series(store, metrics.LAST_ALTERED)) == [("restore", "demo"), ("verify", "demo")]


def test_last_failure_by_class(store, monkeypatch):
    """The last failure of each class, damage found by `verify` included. An interruption counts from its detection, perhaps a day later."""
    store.add_spans([operation(1, "save"), operation(2, "load", **{names.OUTCOME: "cancelled", names.ERROR_CLASS: "cancelled"})])
    assert series(store, metrics.LAST_FAILURE) == {}
    monkeypatch.setattr("ckpt_observe.metricstore.metric_store.time.time", lambda: 4e9)
    died = operation(3, "save", **{names.OUTCOME: "interrupted", names.ERROR_CLASS: "interrupted"})
    damaged, failed = (
        operation(4, "verify", **{names.DAMAGED_COUNT: 3}),
        operation(5, "load", **{names.OUTCOME: "error", names.ERROR_CLASS: "storage"}),
    )
    store.add_spans([died, damaged, failed])
    expected = {
        ("save", "demo", "interrupted"): 4e9,
        ("verify", "demo", "integrity"): damaged.end_unix_nano / 1e9,
        ("load", "demo", "storage"): failed.end_unix_nano / 1e9,
    }
    assert series(store, metrics.LAST_FAILURE) == expected


def test_order_of_damage_and_verification_in_one_batch(store):
    """If damage and a later successful check arrive in one batch, their timestamps still show the order."""
    damage = operation(1, "load", **{names.OUTCOME: "error", names.ERROR_CLASS: "integrity"})
    later = msgspec.structs.replace(operation(2, "verify"), end_unix_nano=damage.end_unix_nano + 10**9)
    store.add_spans([damage, later])
    assert series(store, metrics.LAST_FAILURE)["load", "demo", "integrity"] < series(store, metrics.LAST_VERIFIED)["demo",]


def test_in_flight_and_its_age(store):
    """Running operations and tasks are counted with the start of the oldest; known ones that do not run are zero."""
    store.add_spans(make_tree(1))
    now = [
        running("operation", "restore", "demo", START_UNIX_NANO + 5 * 10**9),
        running("operation", "restore", "demo"),
        running("task", "demo", "demo"),
    ]
    assert series(store, metrics.IN_FLIGHT, now) == {("save", "demo"): 0.0, ("restore", "demo"): 2.0}
    assert series(store, metrics.OLDEST_START, now) == {("restore", "demo"): START_UNIX_NANO / 1e9}
    assert series(store, metrics.TASKS_IN_FLIGHT, now) == {("demo",): 1.0}
    assert series(store, metrics.TASKS_OLDEST_START, now) == {("demo",): START_UNIX_NANO / 1e9}
    assert series(store, metrics.TASKS_OLDEST_START) == {}


def test_long_task_name_is_the_same_while_running_and_after(store):
    """An alert must be able to join running tasks with their last success."""
    store.add_spans([operation(1, "save", **{names.TASK_NAME: "t" * 999})])
    [(_, saved)] = series(store, metrics.LAST_SUCCESS)
    assert series(store, metrics.TASKS_IN_FLIGHT, [running("task", "demo", "t" * 999)]) == {(saved,): 1.0}


def test_in_flight_is_bounded(store):
    """Ten thousand running tasks do not add more series than the label limit allows."""
    now = [running(kind, "save", f"task-{number}") for number in range(10_000) for kind in ("task", "operation")]
    for spec in (metrics.IN_FLIGHT, metrics.OLDEST_START, metrics.TASKS_IN_FLIGHT, metrics.TASKS_OLDEST_START):
        assert len(series(store, spec, now)) <= LABEL_VALUES + 2
    assert sum(series(store, metrics.IN_FLIGHT, now).values()) == 10_000


def test_resources_and_sizes(store):
    """CPU time, I/O, memory, sizes, throughput and the age of restored checkpoints each have their metric."""
    used = {names.CPU_TIME: 0.5, names.IO_WRITE: 4096, names.MEMORY_PEAK: 1 << 20, names.SIZE_STORED: 800, names.THROUGHPUT: 1e6}
    store.add_spans([operation(1, "save", **used), operation(2, "save", **used), operation(3, "restore", **{names.SOURCE_AGE: 90.0})])
    assert series(store, metrics.CPU_TIME)["save", "demo"].value == 1.0
    assert series(store, metrics.IO)["save", "write", "demo"].value == 8192
    assert series(store, metrics.MEMORY_PEAK) == {("save", "demo"): float(1 << 20)}
    assert series(store, metrics.LAST_SIZE) == {("stored", "demo"): 800.0}
    assert series(store, metrics.SIZE)["stored", "save", "demo"].sum == 1600
    assert series(store, metrics.RESTORE_AGE)["demo",].sum == 90
    assert sum(series(store, metrics.THROUGHPUT)["save",].counts) == 2


def test_load_is_not_a_restore(store):
    """A load, without a task or with one, loses no work and leaves the time of the last save as it is."""
    store.add_spans([operation(1, "save")])
    before = series(store, metrics.LAST_SUCCESS)
    aged = {names.SOURCE_AGE: 3 * 86400.0}
    store.add_spans([operation(2, "load", **aged), make_span(3, "checkpoint.load", attributes={names.OPERATION: "load", **aged})])
    after = series(store, metrics.LAST_SUCCESS)
    assert {labels: value for labels, value in after.items() if labels[0] != "load"} == before
    assert series(store, metrics.RESTORE_AGE) == {}


def test_kept_bytes_are_saved_minus_freed(store):
    """Freed bytes reduce the kept bytes, which never become negative."""
    store.add_spans([operation(number, "save", **{names.SIZE_STORED: 1000}) for number in (1, 2, 3)])
    store.add_spans([operation(4, "prune", **{names.COUNT: 2, names.SIZE_FREED: 2000}), operation(5, "load", **{names.SIZE_STORED: 1000})])
    assert series(store, metrics.KEPT_BYTES) == {("demo",): 1000.0}
    assert {labels: point.value for labels, point in series(store, metrics.FREED_BYTES).items()} == {("prune", "demo"): 2000}
    store.add_spans([operation(6, "delete", **{names.SIZE_FREED: 5000})])
    assert series(store, metrics.KEPT_BYTES) == {("demo",): 0.0}


def test_key_sizes_are_those_of_the_last_successful_save(store):
    """Keys that no longer exist have no series; the rest of the state is `_other_`."""
    store.add_spans([operation(1, "save", **{names.KEY_NAMES: ["old"], names.KEY_SIZES: [5]})])
    store.add_spans(
        [operation(2, "save", **{names.KEY_NAMES: ["a", OTHER, "b"], names.KEY_SIZES: [70, 4, 20], names.SIZE_SERIALIZED: 100})]
    )
    store.add_spans([operation(3, "save", **{names.OUTCOME: "error", names.KEY_NAMES: ["c"], names.KEY_SIZES: [1]})])
    assert series(store, metrics.KEY_SIZE) == {("a", "demo"): 70.0, ("b", "demo"): 20.0, (OTHER, "demo"): 10.0}


@pytest.mark.parametrize(
    ("key_names", "sizes"), [(7, [1]), (["a"], None), (["a", "b"], [3]), (["a"], ["big"]), ([["a"]], [3]), ([None], [-1])], ids=str
)
def test_invalid_key_attributes_are_ignored(store, key_names, sizes):
    """Attributes may come from other programs and have any type."""
    store.add_spans([operation(1, "save", **{names.KEY_NAMES: key_names, names.KEY_SIZES: sizes})])
    assert set(series(store, metrics.KEY_SIZE).values()) <= {3.0}


def test_number_of_keys_is_bounded(store):
    """Many or very long key names do not add many series."""
    store.add_spans(
        [
            operation(
                1,
                "save",
                **{names.KEY_NAMES: ["k" * 9999 + str(n) for n in range(99)] + [str(n) for n in range(99)], names.KEY_SIZES: [1] * 198},
            )
        ]
    )
    key_sizes = series(store, metrics.KEY_SIZE)
    assert len(key_sizes) <= LARGEST_KEYS + 1
    assert max(len(key) for key, _ in key_sizes) <= 128


def test_keys_that_are_ids_are_bounded_over_time(store):
    """If every save has different keys, new names become `_other_` after a hundred, and earlier names stay."""

    def saved(number, key):
        return operation(number, "save", **{names.KEY_NAMES: [key], names.KEY_SIZES: [1], names.SIZE_SERIALIZED: 3})

    store.add_spans([saved(number, f"user-{number}") for number in range(1, LABEL_VALUES + 1)])
    store.add_spans([msgspec.structs.replace(saved(200, "weights"), end_unix_nano=START_UNIX_NANO * 2)])
    assert series(store, metrics.KEY_SIZE) == {(OTHER, "demo"): 3.0}
    store.add_spans([msgspec.structs.replace(saved(201, "user-7"), end_unix_nano=START_UNIX_NANO * 3)])
    assert series(store, metrics.KEY_SIZE) == {("user-7", "demo"): 1.0, (OTHER, "demo"): 2.0}


def test_free_space_of_the_last_location(store):
    """Free space is reported for the location of the last save; a location without a result has no series."""
    store.add_spans(
        [operation(1, "save", **{names.LOCATION: "file:///a"}), operation(2, "save", **{names.LOCATION: "s3://b", names.TASK_NAME: "far"})]
    )
    assert series(store, metrics.FREE_BYTES, space={"file:///a": 5.0, "file:///other": 7.0}) == {("demo",): 5.0}
