"""The database is the oracle: after runs of a graph drawn from a seed, its rows and our spans tell the same."""

from __future__ import annotations

import shutil

import pytest
from databases import Database, compare

pytestmark = pytest.mark.libraries


def test_database_and_spans_agree(observation, database, seed):
    """One save per row of `checkpoints`, by ID, parent and namespace; appends for exactly the rows of `writes`; one trace per run.

    Each save and append has the phases of the serializer and of the database, whichever saver it is.
    """
    result = observation.run("drawn_graph.py", seed, database.saver_url)
    spans = observation.spans()
    compare(database, spans)
    spans.check_traces()
    assert result["runs"] > 1, "no interrupt"
    assert result["failures"] > 0, "no retry"
    assert [span for span in spans.operations("save") if "checkpoint.namespace" in span.attributes], "no subgraph"
    assert [span.name for span in spans.roots()] == ["task drawn"] * result["runs"]
    assert {span.attributes["checkpoint.system"] for span in spans.operations()} == {"langgraph"}
    assert [span.name for span in spans if span.status == "error"] == []
    for span in spans.operations("save", "append"):
        assert {"serialize", "wait", "write", "commit"} <= spans.phase_names(span)
    if database.is_sqlite:
        assert len(spans.operations("save", "append")) == result["commits"]


def test_missing_row_is_noticed(observation, tmp_path, seed):
    """Control: the comparison fails if one row of either table is missing."""
    observation.run("drawn_graph.py", seed, "sqlite:checkpoints.db")
    spans = observation.spans()
    for table, key in (("checkpoints", "checkpoint_id"), ("writes", "task_id")):
        shutil.copyfile(tmp_path / "checkpoints.db", tmp_path / f"without-{table}.db")
        database = Database("sqlite:", str(tmp_path / f"without-{table}.db"))
        compare(database, spans)
        database.execute(f"DELETE FROM {table} WHERE {key} = (SELECT {key} FROM {table} LIMIT 1)")
        with pytest.raises(AssertionError):
            compare(database, spans)


def test_same_result_without_us(observation, sqlite, seed):
    """The graph computes the same, and the database has as many rows, if it is not observed."""
    observed = observation.run("drawn_graph.py", seed, sqlite.saver_url)
    rows = len(sqlite.checkpoints())
    sqlite.execute("DELETE FROM checkpoints")
    sqlite.execute("DELETE FROM writes")
    assert observation.run("drawn_graph.py", seed, sqlite.saver_url, observed=False) == observed
    assert len(sqlite.checkpoints()) == rows
