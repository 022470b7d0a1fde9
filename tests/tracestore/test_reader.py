"""Reading traces: lists, filters, id prefixes and order."""

from __future__ import annotations

import pytest

from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree, outline
from ckpt_observe.tracestore import OperationFilter, TraceReader
from ckpt_observe.tracestore import reader as reader_module
from ckpt_observe.tracestore.operation_filter import ATTRIBUTES


def numbers(traces):
    return [int(trace.trace_id, 16) for trace in traces]


def test_newest_first_and_limited(writer, reader):
    """A list starts with the trace that ended last and is no longer than its limit."""
    for number in (2, 3, 1):
        writer.write(make_tree(number, start=number * 1000))
    assert numbers(reader.newest()) == [3, 2, 1]
    assert numbers(reader.newest(2)) == [3, 2]


def test_since_excludes_older_traces(writer, reader):
    """`since` compares ends, so a long task with a recent checkpoint is included."""
    for number in (1, 2, 3):
        writer.write(make_tree(number, start=number * 1000))
    writer.write([make_span(500, "checkpoint.save", trace=1, start=5000)])
    since = START_UNIX_NANO + 2900 * 1_000_000
    assert numbers(reader.newest(matching=OperationFilter(since_unix_nano=since))) == [1, 3]


def test_summary_counts_operations(writer, reader):
    """A summary is named after the earliest span and counts operations by outcome, not phases."""
    writer.write(make_tree(1, operations=("save", "save", "restore"), outcome="error"))
    [trace] = reader.newest()
    assert (trace.name, trace.spans, trace.operations, trace.errors, trace.interrupted) == ("task demo", 10, 3, 1, 0)


@pytest.mark.parametrize(
    ("matching", "expected"),
    [
        (OperationFilter(operation="restore"), [3]),
        (OperationFilter(outcome="interrupted"), [2]),
        (OperationFilter(operation="save"), [3, 2, 1]),
        (OperationFilter(task_name="other"), [3]),
        (OperationFilter(task_id="demo-2"), [2]),
        (OperationFilter(session_id="s1"), [4]),
        (OperationFilter(error_class="capacity"), [4]),
        (OperationFilter(operation="save", outcome="interrupted"), [2]),
        (OperationFilter(operation="restore", outcome="interrupted"), []),
        (OperationFilter(task_name="nobody"), []),
    ],
    ids=str,
)
def test_filter_matches_traces_with_such_a_span(writer, reader, matching, expected):
    """A trace is listed if a single span of it has all values of the filter."""
    writer.write(make_tree(1, start=1000))
    writer.write(make_tree(2, start=2000, outcome="interrupted"))
    writer.write(make_tree(3, start=3000, task="other", operations=("save", "restore")))
    writer.write([make_span(1, "checkpoint.load", trace=4, start=4000, attributes={names.SESSION_ID: "s1", names.ERROR_CLASS: "capacity"})])
    assert numbers(reader.newest(matching=matching)) == expected


def test_filtered_list_is_limited_by_traces_not_spans(writer, reader):
    """Several matching spans of one trace count as one trace."""
    for number in (1, 2, 3):
        writer.write(make_tree(number, start=number * 1000, operations=("save",) * 9))
    assert numbers(reader.newest(2, matching=OperationFilter(operation="save"))) == [3, 2]


def test_no_list_scans_the_store(writer, reader):
    """Every list and every filter follows an index in the order of the result, so that it ends at its limit and needs no sorting."""
    queries = [
        (reader_module._NEWEST, (0, 1, 1)),
        (reader_module._BY_ID, ("0",)),
        (reader_module._BY_PREFIX, ("0", "1", 2)),
        (reader_module._BY_TRACE, ("0",)),
        (reader_module._STORED_AFTER, (0, 1)),
        (reader_module._LAST_STEP, ("0",)),
    ]
    statements = []
    reader._connection.set_trace_callback(statements.append)
    for field in ATTRIBUTES:
        reader.newest(matching=OperationFilter(**{field: "x"}))
        list(reader.operations(OperationFilter(**{field: "x"})))
    reader._connection.set_trace_callback(None)
    assert len(statements) == 2 * len(ATTRIBUTES)
    queries += [(query, ()) for query in statements]
    plans = [row[3] for query, values in queries for row in reader._connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    assert [plan for plan in plans if not plan.startswith(("SEARCH", "SCALAR SUBQUERY", "REUSE SUBQUERY"))] == []


@pytest.mark.parametrize("field", ["outcome", "operation", "task_name", "task_id", "session_id", "error_class"])
def test_rare_values_have_an_index(writer, reader, field):
    """A search for a value that few operations have reads only these."""
    statements = []
    reader._connection.set_trace_callback(statements.append)
    reader.newest(matching=OperationFilter(**{field: "rare"}))
    reader._connection.set_trace_callback(None)
    [plan] = [row[3] for row in reader._connection.execute(f"EXPLAIN QUERY PLAN {statements[0]}")]
    assert f"operation_by_{field} (" in plan


def test_prefix_returns_all_candidates(writer, reader):
    """A unique prefix returns one trace, an ambiguous one all candidates. Case does not matter."""
    for number in (0xAB << 120, 0xAF << 120, 0xB0 << 120):
        writer.write(make_tree(number))
    assert [trace.trace_id[:2] for trace in reader.find("b")] == ["b0"]
    assert [trace.trace_id[:2] for trace in reader.find("A")] == ["ab", "af"]
    assert [trace.trace_id[:2] for trace in reader.find("ab" + "0" * 30)] == ["ab"]
    assert reader.find("c") == []
    assert reader.find("%") == []


def test_spans_are_ordered_parent_first(writer, reader):
    """Spans are stored in the order of their ends and read in the order of their tree."""
    writer.write(make_tree(operations=("save", "restore")))
    spans = reader.spans(f"{1:032x}")
    assert [int(span.span_id, 16) for span in spans] == [1, 2, 3, 4, 5, 6, 7]
    assert outline(spans).splitlines()[:3] == ["task demo", "  checkpoint.save", "    checkpoint.serialize"]


def test_unknown_trace_has_no_spans(reader):
    """The result for an unknown trace is empty."""
    assert reader.spans("f" * 32) == []


def test_reader_cannot_write(reader):
    """Readers open the database for queries only."""
    assert reader._connection.execute("PRAGMA query_only").fetchone() == (1,)


def test_readers_do_not_block_a_writer(writer, reader, path):
    """A query in progress blocks no writer and keeps seeing the data from before the write."""
    writer.write(make_tree(1))
    cursor = reader._connection.execute("SELECT id FROM operation")
    cursor.fetchone()
    writer.write(make_tree(2))
    with TraceReader(path) as other:
        assert len(other.newest()) == 2
    assert len(cursor.fetchall()) == 1  # of two: the task and its save


@pytest.mark.parametrize("moment", [10**20, -(10**20)])
def test_times_beyond_the_range_of_the_store(writer, reader, moment):
    """A moment before or after all that SQLite can compare is a filter like any other: the year 9999, or the year 1."""
    writer.write([make_span(1, "checkpoint.save", trace=1)])
    assert len(reader.newest(matching=OperationFilter(since_unix_nano=moment))) == (moment < 0)
    assert len(list(reader.operations(OperationFilter(until_unix_nano=moment)))) == (moment > 0)
