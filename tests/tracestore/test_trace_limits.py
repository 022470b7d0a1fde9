"""TraceLimits of age and size. Size limits are also tested in test_writer.py."""

from __future__ import annotations

import re
import sqlite3
import time

import pytest

from ckpt_observe.cli.main import main
from ckpt_observe.config import read
from ckpt_observe.errors import ConfigError
from ckpt_observe.exporter_selection import EXPORTERS
from ckpt_observe.exporters.local import LocalExporter
from ckpt_observe.testing.spans import make_tree
from ckpt_observe.tracestore import TraceLimits, TraceReader, TraceWriter, trace_limits
from ckpt_observe.tracestore.trace_limits import DAY, MAX_ROWS

DAY_IN_MILLISECONDS = 86_400_000


def trace_numbers(path):
    with TraceReader(path) as reader:
        return [int(trace.trace_id, 16) for trace in reader.newest(1000)]


def test_old_traces_are_removed(path):
    """Traces that ended longer ago than the limit are removed with the next batch, and counted."""
    writer = TraceWriter(path, TraceLimits(days=10))
    writer.write(make_tree(1, start=-20 * DAY_IN_MILLISECONDS, operations=("save", "load")))
    assert trace_numbers(path) == []
    writer.write([*make_tree(2, start=-5 * DAY_IN_MILLISECONDS), *make_tree(3)])
    writer.close()
    assert trace_numbers(path) == [3, 2]
    with TraceReader(path) as reader:
        [(reason, traces, operations, moment)] = reader.removed()
    assert (reason, traces, operations) == ("age", 1, 2)
    assert abs(moment - time.time_ns()) < DAY


def test_reader_that_follows_misses_nothing_after_a_removal(path):
    """An operation that is stored after the newest one was removed has a later position than that one."""
    writer = TraceWriter(path, TraceLimits(days=0))
    writer.write(make_tree(1, start=-20 * DAY_IN_MILLISECONDS))
    with TraceReader(path) as reader:
        position = reader.newest_position()
        for number in (2, 3):
            limited_writer = TraceWriter(path, TraceLimits(days=10))
            limited_writer.write([])
            assert trace_numbers(path) == []
            writer.write(make_tree(number, start=-20 * DAY_IN_MILLISECONDS))
            stored = reader.stored_after(position, 10)
            assert {int(group.span.trace_id, 16) for _, group in stored} == {number}
            position = stored[-1][0]
            limited_writer.close()
    writer.close()


def test_task_that_goes_on_keeps_its_first_operations(path):
    """Age counts from the last operation of a trace: a run of a month is complete while it lasts."""
    writer = TraceWriter(path, TraceLimits(days=10))
    tree = make_tree(1, start=-20 * DAY_IN_MILLISECONDS)
    writer.write([*tree, *make_tree(1)])
    writer.close()
    assert trace_numbers(path) == [1]


def test_without_limits_nothing_is_removed(path):
    """0 means no limit."""
    writer = TraceWriter(path, TraceLimits(days=0, bytes=0))
    writer.write(make_tree(1, start=-9999 * DAY_IN_MILLISECONDS))
    writer.close()
    assert trace_numbers(path) == [1]


def test_removal_is_done_in_small_transactions(path):
    """However much is too old, other writers wait for a bounded number of operations only."""
    operations = MAX_ROWS * 2 + 10
    writer = TraceWriter(path, TraceLimits(0, 0))
    writer.write(make_tree(1, start=-90 * DAY_IN_MILLISECONDS, operations=("save",) * operations, phases=()))
    writer.close()
    writer = TraceWriter(path, TraceLimits(days=30))
    statements = []
    writer._connection.set_trace_callback(statements.append)
    writer.write(make_tree(2))
    writer._connection.set_trace_callback(None)
    writer.close()
    assert trace_numbers(path) == [2]
    transactions = "\n".join(statements).split("COMMIT")
    removed = [len(set(re.findall(r"^DELETE FROM operation WHERE id = \d+$", part, re.MULTILINE))) for part in transactions]
    assert sum(removed) == operations + 1
    assert max(removed) <= MAX_ROWS


def test_file_shrinks_after_a_large_removal(path, monkeypatch):
    """Most of the space of removed traces returns to the file system, a part with each batch."""
    writer = TraceWriter(path, TraceLimits(0, 0))
    writer.write(make_tree(1, start=-90 * DAY_IN_MILLISECONDS, operations=("save",) * 12_000))
    writer.close()
    size = path.stat().st_size
    monkeypatch.setattr(trace_limits, "_SPARE_PAGES", 10)
    writer = TraceWriter(path, TraceLimits(days=30))
    for number in range(2, 12):
        writer.write(make_tree(number))
    writer.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    assert trace_numbers(path) == list(range(11, 1, -1))
    assert path.stat().st_size < size * 0.5


def test_settings_become_limits(monkeypatch, tmp_path):
    """The variables set the limits of the exporter; defaults are 30 days and 1 GiB."""
    assert EXPORTERS["local"](read({}, dir=tmp_path, exporters="local"))._limits == TraceLimits(30, 1 << 30)
    variables = {"CKPT_OBSERVE_TRACE_DAYS": "7", "CKPT_OBSERVE_TRACE_LIMIT": "0"}
    assert EXPORTERS["local"](read(variables, dir=tmp_path, exporters="local"))._limits == TraceLimits(7, 0)


@pytest.mark.parametrize("value", ["-1", "1.5", "many", ""])
def test_invalid_limits_are_rejected(value):
    """The message names the variable and what is allowed."""
    with pytest.raises(ConfigError, match=r"CKPT_OBSERVE_TRACE_DAYS.*days"):
        read({"CKPT_OBSERVE_TRACE_DAYS": value or "x"}, exporters="local")


def test_doctor_shows_what_was_removed(tmp_path, capsys, monkeypatch):
    """`ckpt-observe doctor` names the reason, its setting and the numbers."""
    exporter = LocalExporter(tmp_path / "state", TraceLimits(days=30))
    exporter.send([*make_tree(1, start=-90 * DAY_IN_MILLISECONDS), *make_tree(2)])
    exporter.close()
    monkeypatch.setenv("CKPT_OBSERVE_EXPORTERS", "local")
    main(["doctor", "--dir", str(tmp_path / "state")])
    output = capsys.readouterr().out
    assert "because of their age (CKPT_OBSERVE_TRACE_DAYS): 1 trace, 1 operation" in output
