"""Killed in a commit: what was committed is ok, what was not is interrupted, and the next process continues the story."""

from __future__ import annotations

import random
import signal

import pytest
from databases import saved

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

CHECKPOINTS = 7
"""Of a whole run: the input, its application, and one per layer of nodes."""
NODES = sorted(["node_0_0", "node_1_0", "node_1_1", "node_2_0", "node_2_1", "node_2_2", "node_3_0", "node_4_0", "node_4_1"])


def test_killed_in_a_commit(observation, sqlite, seed):
    """Exactly the save in whose commit the process was killed is interrupted; the resume is linked to the last committed save."""
    kill_at = random.Random(seed).randint(2, CHECKPOINTS)
    scheme, _, path = sqlite.saver_url.partition(":")
    observation.run("killed_graph.py", scheme, path, kill_at, status=-signal.SIGKILL)
    spans = observation.spans()
    committed = sqlite.checkpoints()
    assert len(committed) == kill_at - 1
    assert saved(spans) == committed
    victim = spans.operation("save", outcome="interrupted")
    interrupted = spans.operations(outcome="interrupted")
    assert [span for span in interrupted if span.attributes[names.ERROR_PHASE] == "commit"] == [victim]
    assert victim.attributes[names.ID] not in {row[2] for row in committed}
    [task] = spans.tasks()
    assert task.attributes[names.OUTCOME] == "interrupted"

    result = observation.run("killed_graph.py", scheme, path, 0)
    assert sorted(result["log"]) == NODES
    last = max(row[2] for row in committed)  # the IDs sort by time
    source = spans.operation("save", id=last)
    before = {span.span_id for span in spans}
    spans = observation.spans()
    [load] = [span for span in spans.operations("load") if span.span_id not in before]
    assert load.attributes[names.ID] == last
    assert (load.attributes[names.SOURCE_TRACE], load.attributes[names.SOURCE_SPAN]) == (source.trace_id, source.span_id)
    assert [(link.trace_id, link.span_id) for link in load.links] == [(source.trace_id, source.span_id)]


def test_killed_before_anything_was_committed(observation, tmp_path):
    """The next process loads nothing, and its load says so and has no link."""
    observation.run("killed_graph.py", "sqlite", "checkpoints.db", 1, status=-signal.SIGKILL)
    assert observation.spans().operations("save", outcome="ok") == []
    observation.run("drawn_graph.py", 1, "sqlite:checkpoints.db")
    loads = [span for span in observation.spans().operations("load") if span.attributes[names.TASK_ID] == "thread-1"]
    first = min(loads, key=lambda span: span.start_unix_nano)
    assert first.attributes["checkpoint.found"] is False
    assert first.links == ()
