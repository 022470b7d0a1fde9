"""Savers that did not exist when observation began: each operation is one span, with the right sizes."""

from __future__ import annotations

import pytest
from databases import Database, compare

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries


SYNC = ["in_function", "any_arguments", "two_levels", "delegation", "mixin", "hidden_subclass", "returned_generator", "duck_typed_serde"]
SYNC += ["other_thread_ids"]
ASYNC = ["async_in_function", "async_any_arguments", "async_delegation", "async_over_sync"]


@pytest.mark.parametrize("kind", SYNC + ASYNC)
def test_one_span_per_operation(observation, tmp_path, kind):
    """However the saver is defined and however it hands on the call, there is one span per operation."""
    result = observation.run("late_savers.py", kind, "checkpoints.db")
    spans = observation.spans()
    database = Database("sqlite:", str(tmp_path / "checkpoints.db"))
    for table in ("checkpoints", "writes"):
        database.execute(f"UPDATE {table} SET thread_id = 'late'")  # spans have the thread id of the graph, whatever the saver makes of it
    compare(database, spans)
    spans.check_traces()
    assert len(spans.operations("append")) == 3  # the input and two nodes
    assert len(spans.operations("load")) == 1
    assert spans.operation("list").attributes[names.COUNT] == result["history"]
    assert spans.operation("delete").attributes[names.TASK_ID] == "another"
    assert {span.attributes["checkpoint.saver"] for span in spans.operations()} == {result["saver"]}
    for save in spans.operations("save"):
        assert {"serialize", "write", "commit"} <= spans.phase_names(save)
