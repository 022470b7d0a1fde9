"""Pruning in PostgreSQL: the rows that are left are the oracle."""

from __future__ import annotations

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.postgres import PostgresSaver

from ckpt_observe.instrument.langgraph import LangGraphInstrumentor
from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries


@pytest.fixture
def saver(recording, postgres_url):
    instrumentor = LangGraphInstrumentor()
    instrumentor.instrument()
    with PostgresSaver.from_conn_string(postgres_url) as saver:
        saver.setup()
        yield saver
    instrumentor.uninstrument()


@pytest.mark.parametrize(("strategy", "rows_left", "whole_task"), [("keep_latest", 1, None), ("delete", 0, True)])
def test_prune(recording, saver, strategy, rows_left, whole_task):
    """One operation in the phases of the database. It says that nothing is left to continue from if that is so."""
    config = {"configurable": {"thread_id": "thread-1", "checkpoint_ns": ""}}
    for step in range(3):
        config = saver.put(config, empty_checkpoint(), {"source": "loop", "step": step}, {})
    saver.prune(["thread-1"], strategy=strategy)
    assert len(saver.conn.execute("SELECT checkpoint_id FROM checkpoints").fetchall()) == rows_left
    [prune] = [span for span in recording.spans() if span.attributes.get(names.OPERATION) == "prune"]
    assert (prune.attributes[names.TASK_ID], prune.attributes.get(names.WHOLE_TASK)) == ("thread-1", whole_task)
    phases = {span.attributes[names.PHASE] for span in recording.spans() if span.parent_span_id == prune.span_id}
    assert {"wait", "write", "commit"} <= phases
