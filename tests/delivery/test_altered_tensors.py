"""A load is compared with the save that wrote its checkpoint, in whichever process that was."""

from __future__ import annotations

import msgspec
import pytest

from ckpt_observe.delivery.annotation import Annotator
from ckpt_observe.delivery.assemble import assemble
from ckpt_observe.delivery.save_index import SaveIndex
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events
from ckpt_observe.tensor_summary import Tensor, TensorSummary

SECOND = 1_000_000_000
SAVED, CONVERTED = {"w": "float32[2]", "b": "float32[1]"}, {"w": "float16[2]", "b": "float32[1]"}


def record(number, operation, types, path="/runs/a.pt", **attributes):
    """Return an operation at this second, whose state has tensors of these types."""
    span, at = f"{number:016x}", number * SECOND
    begin = [events.BEGIN, span, at, events.OPERATION, operation, "b" * 32, "", {names.SYSTEM: "torch", names.ID: path, **attributes}, {}]
    parts = TensorSummary.of([Tensor(name, name, type) for name, type in types.items()]).pack()
    lines = [[events.TENSORS, span, at, part] for part in parts]
    return msgspec.json.encode([begin, *lines, [events.END, span, at + 1, {}, [], 0]])


@pytest.fixture
def create_annotator(tmp_path):
    indexes = []

    def create(find_dead=lambda: None):
        indexes.append(SaveIndex(tmp_path))
        return Annotator(lambda _task: None, indexes[-1], find_dead)

    yield create
    for index in indexes:
        index.close()


def altered(annotator, *arguments, **attributes):
    """Return the altered keys of a load."""
    [annotated] = annotator.annotate([record(*arguments, **attributes)])
    assert events.TENSORS not in [line[0] for line in msgspec.json.decode(annotated)]
    return msgspec.json.decode(annotated)[-1][3].get(names.ALTERED_KEYS)


def test_load_in_another_process(create_annotator):
    """The tensors that differ are named, with their types; a load of what was saved names none."""
    create_annotator().annotate([record(1, "save", SAVED)])
    [annotated] = create_annotator().annotate([record(2, "load", CONVERTED)])
    [span] = assemble(annotated, {})
    assert span.attributes[names.ALTERED_KEYS] == ["w"]
    assert span.attributes[names.ALTERED_TYPES] == ["float32[2] -> float16[2]"]
    assert span.attributes[names.SOURCE_SPAN] == f"{1:016x}"
    assert span.attributes[names.COMPARED] is True
    [annotated] = create_annotator().annotate([record(3, "load", SAVED)])
    assert (msgspec.json.decode(annotated)[-1][3][names.COMPARED], altered(create_annotator(), 3, "load", SAVED)) == (True, None)


def test_save_and_load_in_one_batch(create_annotator):
    """The load is compared with the latest save before it."""
    annotator = create_annotator()
    records = [record(1, "save", SAVED), record(2, "save", CONVERTED), record(3, "load", SAVED)]
    *_, load = annotator.annotate(records)
    assert msgspec.json.decode(load)[-1][3][names.ALTERED_KEYS] == ["w"]


@pytest.mark.parametrize("outcome", ["error", "interrupted"])
def test_failed_operations_are_not_compared(create_annotator, outcome):
    """Neither is a load compared with a save that failed."""
    annotator = create_annotator()
    annotator.annotate([record(1, "save", SAVED), record(2, "save", CONVERTED, **{names.OUTCOME: outcome})])
    assert altered(annotator, 3, "load", SAVED) is None
    assert altered(annotator, 4, "load", CONVERTED, **{names.OUTCOME: outcome}) is None


def test_file_that_was_overwritten_since_the_load(create_annotator):
    """A load that is delivered late is not compared with a save after it."""
    annotator = create_annotator()
    annotator.annotate([record(5, "save", CONVERTED)])
    assert altered(annotator, 4, "load", SAVED) is None


def test_save_of_another_file_or_library(create_annotator):
    """Only the save of the same file with the same library counts."""
    annotator = create_annotator()
    annotator.annotate([record(1, "save", SAVED)])
    assert altered(annotator, 2, "load", CONVERTED, "/runs/b.pt") is None
    assert altered(annotator, 3, "load", CONVERTED, **{names.SYSTEM: "safetensors"}) is None


def test_save_of_a_process_that_has_just_died(create_annotator):
    """It is found: the journals of dead processes are adopted before the comparison."""
    dead = create_annotator()
    annotator = create_annotator(lambda: dead.annotate([record(1, "save", SAVED)]))
    assert altered(annotator, 2, "load", CONVERTED) == ["w"]


def test_damaged_summary(create_annotator):
    """The load is linked to its save and not compared."""
    annotator = create_annotator()
    save = msgspec.json.decode(record(1, "save", SAVED))
    save[1][3] = "damaged"
    annotator.annotate([msgspec.json.encode(save)])
    [load] = annotator.annotate([record(2, "load", CONVERTED)])
    assert names.SOURCE_SPAN in msgspec.json.decode(load)[-1][3]
    assert not {names.ALTERED_KEYS, names.COMPARED} & msgspec.json.decode(load)[-1][3].keys()


def test_summary_is_no_part_of_a_span():
    """A record that nobody annotated becomes a span without it."""
    [span] = assemble(record(1, "save", SAVED), {})
    assert span.events == ()
    assert names.ALTERED_KEYS not in span.attributes
