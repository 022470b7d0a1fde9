"""Keys that grew since the previous save of the same task or path, across processes and exporters."""

from __future__ import annotations

import msgspec
import pytest

from ckpt_observe.delivery import recent_values, save_details
from ckpt_observe.delivery.annotation import Annotator
from ckpt_observe.delivery.grown_keys import find_growth
from ckpt_observe.delivery.save_details import Detail, SaveDetails
from ckpt_observe.delivery.save_index import SaveIndex
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from ckpt_observe.semconv.metrics import LARGEST_KEYS, OTHER

SECOND = 1_000_000_000


def record(number, sizes, checkpoint="c-1", operation="save", **attributes):
    """Return a save at this second, with these sizes of its keys."""
    span = f"{number:016x}"
    begin_attributes = {names.TASK_ID: "t", names.SYSTEM: "langgraph", **attributes}
    begin = [events.BEGIN, span, number * SECOND, events.OPERATION, operation, "b" * 32, "", begin_attributes, {}]
    end_attributes = {names.ID: checkpoint, names.KEY_NAMES: list(sizes), names.KEY_SIZES: list(sizes.values())}
    return msgspec.json.encode([begin, [events.END, span, number * SECOND + 1, end_attributes, [], 0]])


@pytest.fixture
def create_annotator(tmp_path):
    indexes = []

    def create(state=tmp_path):
        indexes.append(SaveIndex(state))
        return Annotator(lambda _task: None, indexes[-1], lambda: None)

    yield create
    for index in indexes:
        index.close()


def growth(annotator, *arguments, **options):
    """Return what the span of a save says about growth."""
    [annotated] = annotator.annotate([record(*arguments, **options)])
    attributes = msgspec.json.decode(annotated)[-1][3]
    return dict(zip(attributes.get(names.GROWN_KEYS, ()), attributes.get(names.GROWN_SIZES, ()), strict=True))


def test_keys_that_grew_are_named(create_annotator):
    """The one that grew most is first. A new key grew by its size; one that shrank or stayed is not named."""
    annotator = create_annotator()
    assert growth(annotator, 1, {"messages": 10, "plan": 7, "step": 3}) == {}
    grown = growth(annotator, 2, {"messages": 30, "plan": 5, "step": 3, "notes": 50}, "c-2")
    assert list(grown.items()) == [("notes", 50), ("messages", 20)]


def test_previous_save_in_another_process(create_annotator):
    """It is found in the state directory."""
    growth(create_annotator(), 1, {"w": 10})
    assert growth(create_annotator(), 2, {"w": 25}) == {"w": 15}


def test_without_a_state_directory(create_annotator):
    """The saves of one process are compared."""
    annotator = create_annotator(None)
    growth(annotator, 1, {"w": 10})
    assert growth(annotator, 2, {"w": 25}) == {"w": 15}


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("/runs/step-100.pt", "/runs/step-200.pt", True),
        ("/runs/epoch=1-step=9.ckpt", "/runs/epoch=2-step=18.ckpt", True),
        ("gs://bucket/10", "gs://bucket/20", True),
        ("/runs/model.pt", "/runs/optimizer.pt", False),
        ("/runs/9/rank0.pt", "/runs/10/rank1.pt", False),
        ("/runs/9/mp_rank_00.pt", "/runs/10/mp_rank_01.pt", False),
        ("/runs/9/rank12.pt", "/runs/10/rank12.pt", True),
        ("/runs/100/model.pt", "/runs/200/model.pt", True),
        ("/runs/checkpoint-100/model.pt", "/runs/checkpoint-200/model.pt", True),
        ("/runs/epoch_1/step_5.pt", "/runs/epoch_2/step_9.pt", True),
        ("/runs/17/step-3.pt", "/runs/18/step-4.pt", False),
        ("/runs/lr_0.1/last.pt", "/runs/lr_0.2/last.pt", False),
    ],
)
def test_series_of_paths(create_annotator, first, second, is_same):
    """Paths that differ in a step are one series, whatever the task. Other names, ranks and runs are another series."""
    annotator = create_annotator()
    growth(annotator, 1, {"w": 1}, first, **{names.TASK_ID: "one"})
    assert growth(annotator, 2, {"w": 5}, second, **{names.TASK_ID: "two"}) == ({"w": 4} if is_same else {})


@pytest.mark.parametrize(
    "other", [{names.TASK_ID: "u"}, {names.NAMESPACE: "child"}, {names.SYSTEM: "reference"}, {names.RANK: 1}, {names.TASK_ID: None}]
)
def test_series_of_tasks(create_annotator, other):
    """A save of another task, namespace, library or rank is not the previous one. A save without task and path has none."""
    annotator = create_annotator()
    growth(annotator, 1, {"w": 1})
    assert growth(annotator, 2, {"w": 5}, **other) == {}
    assert growth(annotator, 3, {"w": 5}) == {"w": 4}, "the control"


@pytest.mark.parametrize("ignored", [{"operation": "load"}, {names.OUTCOME: "error"}, {names.OUTCOME: "interrupted"}])
def test_only_successful_saves_count(create_annotator, ignored):
    """A load, and a save that failed, has no growth and is not the previous save."""
    annotator = create_annotator()
    growth(annotator, 1, {"w": 1})
    assert growth(annotator, 2, {"w": 100}, **ignored) == {}
    assert growth(annotator, 3, {"w": 5}) == {"w": 4}


def test_second_exporter_gets_the_same_answer(create_annotator):
    """A process that delivers for others reads a record once for each exporter, perhaps long after later ones."""
    annotator = create_annotator()
    saves = [(number, {"w": 10 * number * number}) for number in (1, 2, 3)]
    first = [growth(annotator, *save) for save in saves]
    assert first == [{}, {"w": 30}, {"w": 50}]
    assert [growth(annotator, *save) for save in saves] == first
    assert growth(create_annotator(), *saves[1]) == {}, "the save after it is known, and the one before is not"


def test_only_the_largest_keys_are_known():
    """A key that was not among the largest had at most the size of the smallest of them: it grew by at least the rest."""
    previous = {f"k{number}": 100 + number for number in range(LARGEST_KEYS)}
    assert find_growth(previous, {"new": 150, **previous}) == {"new": 50}
    assert find_growth({"k": 100}, {"new": 150, "k": 100}) == {"new": 150}, "all keys were known"
    assert find_growth({"a": 100, OTHER: 50}, {"b": 101, OTHER: 100}) == {"b": 101}, "the rest has other keys than before"


def test_rest_of_the_state(create_annotator):
    """What is in no key that is named, such as plain values beside tensors, is `_other_`, if the size of the whole is known."""
    annotator = create_annotator()
    growth(annotator, 1, {"w": 10, OTHER: 3}, **{names.SIZE_SERIALIZED: 15})
    assert growth(annotator, 2, {"w": 10, OTHER: 9}, **{names.SIZE_SERIALIZED: 1015}) == {OTHER: 1000}
    assert growth(annotator, 3, {"w": 10}) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {names.KEY_SIZES: 7},
        {names.KEY_NAMES: "w"},
        {names.KEY_SIZES: ["x", None]},
        {names.SIZE_SERIALIZED: "big"},
    ],
)
def test_attributes_of_any_type(create_annotator, wrong):
    """User code may set anything: the load after it is linked all the same."""
    lines = msgspec.json.decode(record(1, {"w": 1}))
    lines[-1][3].update(wrong)
    annotator = create_annotator()
    annotator.annotate([msgspec.json.encode(lines)])
    [load] = annotator.annotate([record(2, {}, operation="load")])
    assert names.SOURCE_SPAN in msgspec.json.decode(load)[-1][3]


def test_memory_and_file_are_bounded(tmp_path, monkeypatch):
    """The caches have a capacity, and the file has the latest rows."""
    monkeypatch.setattr(recent_values, "_CAPACITY", 5)
    cache = {}
    for number in range(9):
        recent_values.store_recent(cache, number, number)
    assert list(cache) == [4, 5, 6, 7, 8]
    monkeypatch.setattr(save_details, "MAX_DETAILS", 10)
    index = SaveIndex(tmp_path)
    details = SaveDetails(index)
    for number in range(500):
        details.put(("n", str(number)), Detail(number, {"n": number}))
    details.write()
    [[rows]] = index.run("SELECT count(*) FROM detail", ())
    assert rows <= 10 + save_details._PRUNE_INTERVAL
    assert details.find(("n", "499")) == Detail(499, {"n": 499})
    assert details.find(("n", "0")) is None
    index.close()


def test_rows_wait_while_the_file_is_locked(tmp_path, monkeypatch):
    """They are written later, and found meanwhile; at most some of them wait."""
    index = SaveIndex(tmp_path)
    details = SaveDetails(index)
    with monkeypatch.context() as locked:
        locked.setattr(index, "run", lambda *_: None)
        for number in range(100):
            details.put(("n", str(number)), Detail(number, {"n": number}))
        details.write()
        assert details.find(("n", "99")) == Detail(99, {"n": 99})
        assert details.find(("n", "0")) is None
    details.write()
    assert SaveDetails(index).find(("n", "99")) == Detail(99, {"n": 99})
    index.close()
