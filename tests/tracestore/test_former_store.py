"""Spans of earlier versions, which stored every span as a row of `traces.db`, are moved to the present store."""

from __future__ import annotations

import math
import multiprocessing
import random
import signal
import sqlite3
import subprocess
import sys

import pytest

from benchmarks.former_traces import FormerTraces
from ckpt_observe.cli.main import main
from ckpt_observe.errors import TraceStoreError
from ckpt_observe.exporters.local import LocalExporter
from ckpt_observe.query import open_traces
from ckpt_observe.semconv import attributes as names
from ckpt_observe.span import SpanEvent, SpanLink
from ckpt_observe.testing.spans import make_span, make_tree
from ckpt_observe.tracestore import FILENAME, TraceReader, TraceWriter, former_store
from ckpt_observe.tracestore.former_store import FORMER_FILENAME, FormerStore

fork_free = multiprocessing.get_context("spawn")


@pytest.fixture
def state(tmp_path):
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture
def former(state):
    former = FormerTraces(state / FORMER_FILENAME)
    yield former
    former.close()


@pytest.fixture
def writer(state):
    writer = TraceWriter(state / FILENAME)
    yield writer
    writer.close()


def stored_spans(state):
    """Every span of the present store, by ids."""
    with TraceReader(state / FILENAME) as reader:
        spans = [span for trace in reader.newest(100_000) for span in reader.spans(trace.trace_id)]
    return {(span.trace_id, span.span_id): span for span in spans}


def varied_spans():
    """Spans of all kinds: tasks, operations with nested phases, failures, links, other libraries, a phase without its operation."""
    failure = {names.OUTCOME: "error", names.ERROR_CLASS: "capacity", names.ERROR_CODE: "capacity.disk_full"}
    event = SpanEvent("exception", 5, {"exception.message": "ö"})
    save = make_span(
        1, "checkpoint.save", trace=90, attributes={names.OPERATION: "save", **failure}, status="error", events=(event,), milliseconds=9
    )
    phase = make_span(
        2, "checkpoint.write", trace=90, parent=1, attributes={names.PHASE: "write", **failure}, status="error", events=(event,)
    )
    nested = make_span(
        3, "checkpoint.sync", trace=90, parent=2, attributes={names.PHASE: "sync", names.OUTCOME: "ok", "own": [1, {"a": None}]}
    )
    load = make_span(4, "checkpoint.load", trace=91, attributes={names.OPERATION: "load"}, links=(SpanLink("a" * 32, "b" * 16, {"x": 1}),))
    other = make_span(5, "GET /", trace=91, parent=4, attributes={"http.status": 200}, status="unset", resource={"service.name": "other"})
    stray = make_span(6, "checkpoint.write", trace=92, parent=77, attributes={names.PHASE: "write", names.OUTCOME: "ok"})
    return [*make_tree(1, operations=("save", "restore"), outcome="interrupted"), nested, phase, save, other, load, stray]


def test_nothing_is_lost_or_changed(former, writer, state):
    """All spans arrive as they were, whatever they are, and their traces have the same summaries. The former store is empty then."""
    spans = varied_spans()
    former.write(spans)
    summaries = {summary.trace_id: summary for summary in former.newest()}
    assert FormerStore(state).move(writer, math.inf) == len(spans)
    assert stored_spans(state) == {(span.trace_id, span.span_id): span for span in spans}
    with TraceReader(state / FILENAME) as reader:
        assert {summary.trace_id: summary for summary in reader.newest()} == summaries
        assert all(group.phases for group in reader.operations() if group.span.attributes.get(names.OPERATION) == "save")
    assert (former.count(), former.newest()) == (0, [])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_batches_keep_operations_whole(former, writer, state, size, monkeypatch):
    """Whatever the size of a batch, an operation arrives with its phases."""
    monkeypatch.setattr(former_store, "_BATCH", size)
    monkeypatch.setattr(former_store, "_READ_AHEAD", 4)
    for number in range(1, 8):
        former.write(make_tree(number, operations=("save", "load", "restore")))
    FormerStore(state).move(writer, math.inf)
    with TraceReader(state / FILENAME) as reader:
        phases = [len(group.phases) for group in reader.operations() if names.OPERATION in group.span.attributes]
    assert phases == [2] * 21


def test_moving_stops_after_its_time(former, writer, state, monkeypatch):
    """One call moves at least one batch and no more after its time. Later calls continue, until nothing is left."""
    monkeypatch.setattr(former_store, "_BATCH", 4)
    monkeypatch.setattr(former_store, "_READ_AHEAD", 0)
    for number in range(1, 6):
        former.write(make_tree(number))
    mover = FormerStore(state)
    moved = [mover.move(writer, 0) for _ in range(6)]
    assert moved == [4, 4, 4, 4, 4, 0]
    assert not mover.has_changed()


def test_spans_that_an_earlier_version_adds_later_are_moved_too(former, writer, state):
    """During an upgrade, a process of the earlier version goes on writing, and repeats what was moved already."""
    mover = FormerStore(state)
    former.write(make_tree(1, outcome="interrupted"))
    mover.move(writer, math.inf)
    assert not mover.has_changed()
    former.write(make_tree(1, outcome="ok"))
    former.write(make_tree(2))
    assert mover.has_changed()
    mover.move(writer, math.inf)
    with TraceReader(state / FILENAME) as reader:
        assert [(trace.operations, trace.interrupted, trace.spans) for trace in reader.newest()] == [(1, 0, 4), (1, 0, 4)]


def _write_former(path, count):
    former = FormerTraces(path)
    for number in range(1, count + 1):
        former.write(make_tree(number, operations=("save",) * 3))
    former.close()


def _move(state, done):
    mover, writer = FormerStore(state), TraceWriter(state / FILENAME)
    while not done.is_set():
        _move_all(mover, writer)
    _move_all(mover, writer)
    writer.close()


def _move_all(mover, writer):
    """Move everything. As in delivery, try again if others hold the lock for too long."""
    while True:
        try:
            mover.move(writer, math.inf)
        except TraceStoreError as error:
            if "is locked" not in str(error):
                raise
        else:
            return


def test_versions_share_a_state_directory(state):
    """While a process of the earlier version writes, two of the present one move: nothing is lost, nothing is there twice."""
    FormerTraces(state / FORMER_FILENAME).close()
    TraceWriter(state / FILENAME).close()
    done = fork_free.Event()
    movers = [fork_free.Process(target=_move, args=(state, done)) for _ in range(2)]
    earlier = fork_free.Process(target=_write_former, args=(state / FORMER_FILENAME, 40))
    for process in (*movers, earlier):
        process.start()
    earlier.join()
    done.set()
    for process in movers:
        process.join()
    assert [process.exitcode for process in (earlier, *movers)] == [0, 0, 0]
    expected = [span for number in range(1, 41) for span in make_tree(number, operations=("save",) * 3)]
    assert stored_spans(state) == {(span.trace_id, span.span_id): span for span in expected}
    with TraceReader(state / FILENAME) as reader:
        assert {trace.spans for trace in reader.newest(100)} == {10}


KILLED = """
import sys, math
from pathlib import Path
from ckpt_observe.support import sqlite
from ckpt_observe.tracestore import FILENAME, TraceWriter, former_store
former_store._BATCH, former_store._READ_AHEAD = 40, 10
state, when, batches = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def wait_to_be_killed():
    global batches
    batches -= 1
    if batches == 0:
        print("now", flush=True)
        sys.stdin.read()

original = TraceWriter.write_former
def write_former(self, spans):
    if when == "before":
        wait_to_be_killed()
    original(self, spans)
    if when == "between":  # stored, and not yet removed from the former store
        wait_to_be_killed()
TraceWriter.write_former = write_former
former_store.FormerStore(state).move(TraceWriter(state / FILENAME), math.inf)
"""


def kill_during_move(state, when, batch):
    command = [sys.executable, "-c", KILLED, str(state), when, str(batch)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def assert_nothing_is_lost(state, spans):
    assert stored_spans(state) == {(span.trace_id, span.span_id): span for span in spans}
    with TraceReader(state / FILENAME) as reader:
        assert sum(trace.spans for trace in reader.newest(1000)) == len(spans)


def test_killed_during_the_move(former, state):
    """After any number of kills, before or after a batch was stored, the next process continues, and each span is there once."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    numbers = random.Random(seed)
    spans = [span for number in range(1, 61) for span in make_tree(number, operations=("save",) * 2)]
    former.write(spans)
    for when in ("between", "before", "between"):
        kill_during_move(state, when, numbers.randint(1, 2))
    writer = TraceWriter(state / FILENAME)
    FormerStore(state).move(writer, math.inf)
    writer.close()
    assert_nothing_is_lost(state, spans)


def test_control_a_lost_operation_is_noticed(former, writer, state):
    """The check of the kill test fails if a single operation is missing."""
    spans = make_tree(1, operations=("save",) * 2)
    former.write(spans)
    FormerStore(state).move(writer, math.inf)
    connection = sqlite3.connect(state / FILENAME)
    connection.execute("DELETE FROM operation WHERE id = (SELECT max(id) FROM operation WHERE operation = 'save')")
    connection.commit()
    connection.close()
    with pytest.raises(AssertionError):
        assert_nothing_is_lost(state, spans)


def test_damaged_row_stays_and_blocks_nothing(former, writer, state, caplog):
    """A row that cannot be decoded stays in the former store, which is logged. All others are moved."""
    for number in (1, 2, 3):
        former.write([make_span(number, "checkpoint.save", attributes={names.OPERATION: "save"})])
    former.connection.execute("UPDATE span SET attributes = '{broken' WHERE id = 2")
    FormerStore(state).move(writer, math.inf)
    assert {int(span_id, 16) for _, span_id in stored_spans(state)} == {1, 3}
    assert former.count() == 1
    assert "Damaged spans of an earlier version stay in" in caplog.text


def test_exporter_moves_on_the_side(former, state):
    """A program of the present version moves the spans while it delivers its own."""
    former.write(make_tree(1))
    exporter = LocalExporter(state)
    exporter.send(make_tree(2))
    exporter.close()
    assert {int(trace_id, 16) for trace_id, _ in stored_spans(state)} == {1, 2}


@pytest.mark.parametrize("content", ["not a database " * 100, ""], ids=["text", "empty"])
def test_foreign_file_is_left_alone(state, content, caplog):
    """A file with the name of the former store that is not one is not changed, and delivery goes on. The problem is logged once."""
    (state / FORMER_FILENAME).write_text(content)
    exporter = LocalExporter(state)
    for number in (1, 2):
        exporter.send(make_tree(number))
        exporter._next_move = 0.0
    exporter.close()
    assert {int(trace_id, 16) for trace_id, _ in stored_spans(state)} == {1, 2}
    assert (state / FORMER_FILENAME).read_text() == content
    assert len(caplog.records) == 1


def test_command_shows_traces_of_an_earlier_version(former, state, capsys):
    """`ckpt-observe traces` moves everything first, so that nothing is missing in its list."""
    for number in range(1, 10):
        former.write(make_tree(number))
    assert main(["traces", "--dir", str(state), "--tsv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 9


def test_moved_spans_are_not_news(former, writer, state):
    """Who follows the store is not told about operations of weeks ago that are moved now."""
    writer.write(make_tree(1))
    with open_traces(state) as traces:
        cursor = traces.changes().cursor
        former.write(make_tree(2))
        FormerStore(state).move(writer, math.inf)
        writer.write(make_tree(3))
        assert {int(operation.trace_id, 16) for operation in traces.changes(cursor).finished} == {3}


def test_new_operations_after_the_move_are_followed(state, writer):
    """What is stored after the former spans is new for readers that follow the store, also if the store was empty before the move."""
    writer.write_former([make_span(1, "checkpoint.save", trace=1, attributes={names.OPERATION: "save"})])
    with TraceReader(state / FILENAME) as reader:
        position = reader.newest_position()
        writer.write([make_span(2, "checkpoint.save", trace=2, attributes={names.OPERATION: "save"})])
        [(_, group)] = reader.stored_after(position, 10)
    assert group.span.span_id == make_span(2, "", trace=2).span_id
