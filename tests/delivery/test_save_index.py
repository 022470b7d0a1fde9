"""Links between a load and the save that wrote its checkpoint, across processes."""

from __future__ import annotations

import os
import sqlite3
import stat

import msgspec
import pytest

from ckpt_observe.delivery import save_index
from ckpt_observe.delivery.annotation import Annotator
from ckpt_observe.delivery.save_index import FILENAME, SaveIndex, Source
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv import events

TRACE, SPAN = "b" * 32, "a" * 16


def record(operation, at=1_000_000_000, checkpoint="c-1", system="langgraph", outcome=None, **attributes):
    begin = [events.BEGIN, SPAN, at, events.OPERATION, operation, TRACE, "", {names.TASK_ID: "t", **attributes}, {names.SYSTEM: system}]
    return msgspec.json.encode([begin, [events.END, SPAN, at + 1, {names.ID: checkpoint, names.OUTCOME: outcome}, [], 0]])


def annotate(annotator, one_record):
    [annotated] = annotator.annotate([one_record])
    return annotated


def source_of(annotator, *arguments, **attributes):
    """Return the span that a load links to, as its link and its attributes say."""
    lines = msgspec.json.decode(annotate(annotator, record("load", *arguments, **attributes)))
    links = [(line[3], line[4]) for line in lines if line[0] == events.LINK]
    attributes = lines[-1][3]
    assert links == [(attributes[names.SOURCE_TRACE], attributes[names.SOURCE_SPAN])] if names.SOURCE_TRACE in attributes else not links
    return links[0] if links else None


@pytest.fixture
def open_index(tmp_path):
    indexes = []

    def create(state=tmp_path):
        indexes.append(SaveIndex(state))
        return indexes[-1]

    yield create
    for index in indexes:
        index.close()


def create_annotator(index, find_dead=lambda: None):
    return Annotator(lambda _task: None, index, find_dead)


def test_load_in_another_process_links_to_the_save(open_index):
    """The index is shared by the processes of a state directory."""
    annotate(create_annotator(open_index()), record("save"))
    assert source_of(create_annotator(open_index()), 5_000_000_000) == (TRACE, SPAN)


def test_age_counts_from_the_end_of_the_save(open_index):
    """A load without an age of its own gets the seconds since the save ended."""
    annotator = create_annotator(open_index())
    annotate(annotator, record("save"))
    end = msgspec.json.decode(annotate(annotator, record("load", 3_500_000_001)))[-1]
    assert end[3][names.SOURCE_AGE] == 2.5


@pytest.mark.parametrize(
    "save",
    [
        {"checkpoint": "c-2"},
        {"system": "other"},
        {"outcome": "error"},
        {"outcome": "interrupted"},
        {names.TASK_ID: "another"},
        {names.NAMESPACE: "child"},
    ],
    ids=str,
)
def test_other_saves_are_not_linked(open_index, save):
    """Library, task, namespace and id must all be the same, and the save must have succeeded."""
    annotator = create_annotator(open_index())
    annotate(annotator, record("save", **save))
    assert source_of(annotator) is None


def test_path_identifies_a_checkpoint_whatever_the_task(open_index):
    """Training that continues in another process often has another task id; the path of the checkpoint is the same."""
    annotate(create_annotator(open_index()), record("save", checkpoint="/run/checkpoint-5"))
    continued = create_annotator(open_index())
    assert source_of(continued, 5_000_000_000, "/run/checkpoint-5", **{names.TASK_ID: "continued"}) == (TRACE, SPAN)
    assert source_of(continued, 5_000_000_000, "/run/checkpoint-6") is None


def test_later_save_to_the_same_path_replaces_the_earlier_one(open_index):
    """A load gets the age of the last save before it, and no link if only a save after it is known."""
    annotator = create_annotator(open_index())
    for at in (1_000_000_000, 3_000_000_000):
        annotate(annotator, record("save", at, "/run/last.ckpt"))
    end = msgspec.json.decode(annotate(annotator, record("load", 3_500_000_001, "/run/last.ckpt")))[-1]
    assert end[3][names.SOURCE_AGE] == 0.5
    assert source_of(annotator, 2_000_000_000, "/run/last.ckpt") is None
    assert source_of(create_annotator(open_index()), 4_000_000_000, "/run/last.ckpt") == (TRACE, SPAN)


def test_link_of_the_library_itself_stays(open_index):
    """A load that already knows its save, as in the reference core, is not changed."""
    annotator = create_annotator(open_index())
    annotate(annotator, record("save"))
    loaded = record("load", **{names.SOURCE_TRACE: "c" * 32})
    assert annotate(annotator, loaded) == loaded


def test_unsampled_save_is_not_linked(open_index):
    """No backend has the span of an unsampled save: a load has the age of its checkpoint and no link, also not to an earlier save."""
    path = "/run/last.ckpt"
    annotator = create_annotator(open_index())
    annotate(annotator, record("save", 1_000_000_000, path))
    annotate(annotator, record("save", 3_000_000_000, path, **{events.UNSAMPLED: events.NOTHING}))
    for each in (annotator, create_annotator(open_index())):
        assert source_of(each, 4_000_000_000, path) is None
        assert msgspec.json.decode(annotate(each, record("load", 3_500_000_001, path)))[-1][3][names.SOURCE_AGE] == 0.5


def test_save_of_a_process_that_just_died(open_index):
    """If the save is not in the index, dead processes are searched once: the last pages of one may contain it."""
    searches = []
    index = open_index()

    def find_dead():
        searches.append(None)
        annotator.annotate_dead([record("save")])

    annotator = create_annotator(index, find_dead)
    assert source_of(annotator, 2_000_000_000) == (TRACE, SPAN)
    assert [source_of(annotator, 2_000_000_000, "gone") for _ in range(3)] == [None] * 3
    assert len(searches) == 1


def test_index_is_bounded_and_private(open_index, tmp_path, monkeypatch):
    """The oldest saves are dropped, and only the user may read the file."""
    monkeypatch.setattr(save_index, "MAX_SAVES", 100)
    monkeypatch.setattr(save_index, "_PRUNE_INTERVAL", 10)
    index = open_index()
    for number in range(1000):
        index.add(number.to_bytes(16, "big"), Source(TRACE, SPAN, number))
        if number % 10 == 9:
            index.write()
    with sqlite3.connect(tmp_path / FILENAME) as connection:
        assert connection.execute("SELECT count(*), max(time) FROM save").fetchone() == (100, 999)
    connection.close()
    assert stat.S_IMODE((tmp_path / FILENAME).stat().st_mode) == 0o600


def test_saves_of_a_batch_are_written_together(open_index, monkeypatch):
    """A batch takes one statement, not one for each save: each gives up the GIL. A load in the same batch finds its save."""
    index, statements = open_index(), []
    run = index.run
    monkeypatch.setattr(index, "run", lambda statement, parameters: (statements.append(statement[:6]), run(statement, parameters))[1])
    batch = [record("save", checkpoint=f"c-{number}") for number in range(900)]
    annotated = create_annotator(index).annotate([*batch, record("load", 2_000_000_000, "c-7")])
    assert msgspec.json.decode(annotated[-1])[-1][3][names.SOURCE_SPAN] == SPAN
    assert statements == ["INSERT"]
    assert source_of(create_annotator(open_index()), 2_000_000_000, "c-899") == (TRACE, SPAN)


@pytest.mark.parametrize("damage", [b"not a database" * 500, None])
def test_unusable_file_is_reported_once(open_index, tmp_path, caplog, damage):
    """With a damaged file, or a directory in its place, saves of this process are still linked, and one warning says what is lost."""
    if damage is None:
        os.mkdir(tmp_path / FILENAME)
    else:
        (tmp_path / FILENAME).write_bytes(damage)
    annotator = create_annotator(open_index())
    annotate(annotator, record("save"))
    assert source_of(annotator) == (TRACE, SPAN)
    assert source_of(annotator, 1, "another") is None
    assert caplog.text.count("Loads are not linked to saves of other processes") == 1


def test_locked_file_is_written_later(open_index, tmp_path, monkeypatch):
    """Saves that could not be written, because another process had locked the file, are written with the next ones."""
    monkeypatch.setattr(save_index, "_BUSY_SECONDS", 0.0)
    index = open_index()
    index.add(b"1" * 16, Source(TRACE, SPAN, 1))
    index.write()
    with sqlite3.connect(tmp_path / FILENAME, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        index.add(b"2" * 16, Source(TRACE, SPAN, 2))
        index.write()
        other.execute("ROLLBACK")
        assert other.execute("SELECT count(*) FROM save").fetchone() == (1,)
        index.write()
        assert other.execute("SELECT count(*) FROM save").fetchone() == (2,)
    other.close()
