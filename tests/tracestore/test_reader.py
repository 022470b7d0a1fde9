"""Reading: lists, filters, prefixes, order."""

from __future__ import annotations

import pytest

from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import START_UNIX_NANO, make_span, make_tree, outline
from ckpt_observe.tracestore import Filter, TraceReader
from ckpt_observe.tracestore import reader as reader_module


def numbers(traces):
    return [int(trace.trace_id, 16) for trace in traces]


def test_newest_first_and_limited(writer, reader):
    """A list begins with what ended last and is as long as asked."""
    for number in (2, 3, 1):
        writer.write(make_tree(number, start=number * 1000))
    assert numbers(reader.newest()) == [3, 2, 1]
    assert numbers(reader.newest(2)) == [3, 2]


def test_since_leaves_out_the_older(writer, reader):
    """`since` is about the end: a long task whose last checkpoint is recent is there."""
    for number in (1, 2, 3):
        writer.write(make_tree(number, start=number * 1000))
    writer.write([make_span(500, "checkpoint.save", trace=1, start=5000)])
    since = START_UNIX_NANO + 2900 * 1_000_000
    assert numbers(reader.newest(since_unix_nano=since)) == [1, 3]


def test_summary_counts_operations(writer, reader):
    """A line of the list is named by the earliest span and counts operations and how they ended, not phases."""
    writer.write(make_tree(1, operations=("save", "save", "restore"), outcome="error"))
    [trace] = reader.newest()
    assert (trace.name, trace.spans, trace.operations, trace.errors, trace.interrupted) == ("task demo", 10, 3, 1, 0)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (Filter(name="checkpoint.restore"), [3]),
        (Filter(outcome="interrupted"), [2]),
        (Filter(operation="save"), [3, 2, 1]),
        (Filter(task_name="other"), [3]),
        (Filter(task_id="demo-2"), [2]),
        (Filter(session_id="s1"), [4]),
        (Filter(error_class="capacity"), [4]),
        (Filter(operation="save", outcome="interrupted"), [2]),
        (Filter(operation="restore", outcome="interrupted"), []),
        (Filter(task_name="nobody"), []),
    ],
    ids=str,
)
def test_filter_finds_traces_with_such_a_span(writer, reader, where, expected):
    """A trace is listed when one of its spans is all that was asked for."""
    writer.write(make_tree(1, start=1000))
    writer.write(make_tree(2, start=2000, outcome="interrupted"))
    writer.write(make_tree(3, start=3000, task="other", operations=("save", "restore")))
    writer.write([make_span(1, "checkpoint.load", trace=4, start=4000, attributes={names.SESSION_ID: "s1", names.ERROR_CLASS: "capacity"})])
    assert numbers(reader.newest(where=where)) == expected


def test_filtered_list_is_limited_by_traces_not_spans(writer, reader):
    """Many matching spans of one trace are one line."""
    for number in (1, 2, 3):
        writer.write(make_tree(number, start=number * 1000, operations=("save",) * 9))
    assert numbers(reader.newest(2, where=Filter(operation="save"))) == [3, 2]


def test_no_list_scans_the_store(writer, reader):
    """Every list and every single filter is read along an index, without sorting."""
    queries = [
        (reader_module._NEWEST, (0, 1)),
        (reader_module._BY_ID, ("0",)),
        (reader_module._BY_PREFIX, ("0", "1", 2)),
        (reader_module._SPANS, ("0",)),
    ]
    asked = []
    reader._connection.set_trace_callback(asked.append)
    for field in Filter._fields:
        reader.newest(where=Filter(**{field: "x"}))
    reader._connection.set_trace_callback(None)
    queries += [(query, ()) for query in asked]
    plans = [row[3] for query, values in queries for row in reader._connection.execute(f"EXPLAIN QUERY PLAN {query}", values)]
    assert len(asked) == len(Filter._fields)
    assert [plan for plan in plans if not plan.startswith("SEARCH")] == []


def test_prefix_finds_one_or_lists_candidates(writer, reader):
    """The beginning of an id is enough if it is unique; if not, all it may mean come back; capital letters are the same."""
    for number in (0xAB << 120, 0xAF << 120, 0xB0 << 120):
        writer.write(make_tree(number))
    assert [trace.trace_id[:2] for trace in reader.find("b")] == ["b0"]
    assert [trace.trace_id[:2] for trace in reader.find("A")] == ["ab", "af"]
    assert [trace.trace_id[:2] for trace in reader.find("ab" + "0" * 30)] == ["ab"]
    assert reader.find("c") == []
    assert reader.find("%") == []


def test_spans_come_parent_first(writer, reader):
    """Spans that ended child first come back in the order of their tree."""
    writer.write(make_tree(operations=("save", "restore")))
    spans = reader.spans(f"{1:032x}")
    assert [int(span.span_id, 16) for span in spans] == [1, 2, 3, 4, 5, 6, 7]
    assert outline(spans).splitlines()[:3] == ["task demo", "  checkpoint.save", "    checkpoint.serialize"]


def test_unknown_trace_has_no_spans(reader):
    """Asking for what is not there is an empty answer."""
    assert reader.spans("f" * 32) == []


def test_reader_cannot_write(reader):
    """A reader is a reader."""
    assert reader._connection.execute("PRAGMA query_only").fetchone() == (1,)


def test_readers_do_not_stop_a_writer(writer, reader, path):
    """A list half read does not keep others from writing, and sees what came before it."""
    writer.write(make_tree(1))
    cursor = reader._connection.execute("SELECT trace_id FROM span")
    cursor.fetchone()
    writer.write(make_tree(2))
    with TraceReader(path) as other:
        assert len(other.newest()) == 2
    assert len(cursor.fetchall()) == len(make_tree()) - 1
