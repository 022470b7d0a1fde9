"""Writing spans: repeats, size limit, several processes, full disks."""

from __future__ import annotations

import multiprocessing
import resource
import sqlite3

import pytest

from ckpt_observe.errors import TraceStoreError
from ckpt_observe.testing.spans import make_span, make_tree
from ckpt_observe.tracestore import TraceLimits, TraceReader, TraceWriter, database

fork_free = multiprocessing.get_context("spawn")


def rows(path, table):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    finally:
        connection.close()


def test_repeated_spans_replace_earlier_copies(writer, reader):
    """Writing the same spans again adds no rows and changes no counts."""
    writer.write(make_tree())
    before = reader.newest()
    writer.write(make_tree())
    assert reader.newest() == before
    assert len(reader.spans(before[0].trace_id)) == len(make_tree())


def test_repeat_within_a_batch_is_counted_once(writer, reader):
    """A span that occurs twice in the first batch of a trace is counted once."""
    writer.write([*make_tree(), *make_tree()])
    [trace] = reader.newest()
    assert (trace.operations, trace.spans) == (1, len(make_tree()))


def test_later_version_of_a_span_wins(writer, reader):
    """The counts of a trace follow the latest version of each span."""
    writer.write(make_tree(outcome="interrupted"))
    writer.write(make_tree(outcome="ok"))
    [trace] = reader.newest()
    assert (trace.operations, trace.interrupted, trace.spans) == (1, 0, len(make_tree()))


def test_resource_is_stored_once(writer, path):
    """Equal resources share one row; the order of their keys does not matter."""
    writer.write(make_tree(1, resource={"a": 1, "b": 2}))
    writer.write(make_tree(2, resource={"b": 2, "a": 1}))
    writer.write(make_tree(3, resource={"a": 1, "b": 3}))
    assert rows(path, "resource") == 2


def test_batch_is_all_or_nothing(writer, reader):
    """A batch with a value that cannot be stored leaves nothing behind, and the next batch is stored."""
    with pytest.raises(TraceStoreError) as caught:
        writer.write([*make_tree(1), make_span(9, "bad", attributes={"own": object()})])
    assert not caught.value.retryable
    with pytest.raises(TraceStoreError):
        writer.write([*make_tree(1), make_span(9, "bad", end_unix_nano=2**70)])
    assert reader.newest() == []
    writer.write(make_tree(2))
    assert len(reader.newest()) == 1


def test_pruning_keeps_whole_traces_and_the_newest(path):
    """Above its limit the store removes whole traces, longest idle first. The remaining traces are complete."""
    limit = 400_000
    writer = TraceWriter(path, TraceLimits(bytes=limit))
    padding = {"service.name": "x"}
    for number in range(1, 301):
        writer.write(make_tree(number, start=number * 1000, operations=("save",) * 3, resource=padding))
    writer.close()
    with TraceReader(path) as reader:
        traces = reader.newest(1000)
        numbers = [int(trace.trace_id, 16) for trace in traces]
        assert numbers == list(range(300, 300 - len(numbers), -1))
        assert 10 < len(numbers) < 300
        assert {len(reader.spans(trace.trace_id)) for trace in traces} == {10}
    assert rows(path, "operation") == 4 * len(numbers)
    assert path.stat().st_size < limit * 1.2


def test_idle_traces_are_pruned_before_old_active_ones(path):
    """A task that started first but is still active is kept longer than one that ended."""
    writer = TraceWriter(path, TraceLimits(bytes=200_000))
    for number in range(2, 200):
        writer.write([make_span(number, "checkpoint.save", trace=1, start=number * 1000)])
        writer.write(make_tree(number, start=number * 1000))
    with TraceReader(path) as reader:
        traces = {int(trace.trace_id, 16) for trace in reader.newest(1000)}
        assert 1 in traces
        assert 2 not in traces
        assert len(reader.spans(f"{1:032x}")) == 198
    writer.close()


def test_trace_larger_than_the_store_keeps_its_newest_spans(path):
    """The limit also holds for a single endless trace, which loses its oldest spans."""
    limit = 300_000
    writer = TraceWriter(path, TraceLimits(bytes=limit))
    for number in range(1, 3001, 10):
        writer.write([make_span(n, "checkpoint.save") for n in range(number, number + 10)])
    writer.close()
    with TraceReader(path) as reader:
        [trace] = reader.newest()
        numbers = [int(span.span_id, 16) for span in reader.spans(trace.trace_id)]
    assert numbers == list(range(3001 - len(numbers), 3001))
    assert 100 < trace.spans == len(numbers)
    assert path.stat().st_size < limit * 1.2


def test_pruning_removes_unused_resources(path):
    """A resource is removed with its last span."""
    writer = TraceWriter(path, TraceLimits(bytes=150_000))
    for number in range(1, 201):
        writer.write(make_tree(number, start=number * 1000, resource={"process.pid": number}))
    writer.close()
    assert rows(path, "resource") == rows(path, "trace") < 200


def test_tiny_limit_does_not_loop(path):
    """With a limit below the size of an empty store, one span remains and pruning ends."""
    writer = TraceWriter(path, TraceLimits(bytes=1))
    writer.write(make_tree())
    writer.close()
    assert rows(path, "operation") == 1


def _write_many(path, first, start_line):
    start_line.wait()
    writer = TraceWriter(path)
    for number in range(first, first + 30):
        writer.write([*make_tree(number), make_span(number, "shared", trace=9999)])
    writer.close()


def test_processes_write_concurrently(path):
    """Processes that create and fill one store at the same time wait for each other and lose nothing."""
    start_line = fork_free.Barrier(3)
    processes = [fork_free.Process(target=_write_many, args=(path, 100 * n, start_line)) for n in (1, 2, 3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with TraceReader(path) as reader:
        assert len(reader.newest(1000)) == 91
        assert len(reader.spans(f"{9999:032x}")) == 90
        assert reader._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_locked_store_is_retryable(writer, path, monkeypatch):
    """While another process holds the lock, writing fails with a retryable error; afterwards it succeeds."""
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.0)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    second = TraceWriter(path)
    with pytest.raises(TraceStoreError, match="locked") as caught:
        second.write(make_tree())
    assert caught.value.retryable
    other.execute("COMMIT")
    second.write(make_tree())
    second.close()
    other.close()
    assert rows(path, "trace") == 1


def _fill_small_disk(path, answers):
    writer = TraceWriter(path)
    writer.write(make_tree(1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 200_000, resource.RLIM_INFINITY))
    big = {"own.text": "x" * 300_000}
    try:
        writer.write([make_span(1, "big", trace=2, attributes=big)])
        answers.put("stored")
    except TraceStoreError as error:
        answers.put((error.retryable, str(error)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    writer.write(make_tree(3))
    writer.close()


def test_full_disk_is_retryable_and_damages_nothing(path):
    """If the file cannot grow, writing fails with a retryable error. Earlier batches are intact and later ones are stored."""
    answers = fork_free.Queue()
    process = fork_free.Process(target=_fill_small_disk, args=(path, answers))
    process.start()
    retryable, message = answers.get()
    process.join()
    assert process.exitcode == 0
    assert retryable, message
    with TraceReader(path) as reader:
        assert [int(trace.trace_id, 16) for trace in reader.newest()] == [3, 1]
        assert reader._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
