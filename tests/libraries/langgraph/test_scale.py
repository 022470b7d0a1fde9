"""Long histories and many parallel runs: spans stay small, and nothing is lost or in the wrong trace."""

from __future__ import annotations

from collections import Counter

import pytest

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

CHECKPOINTS = 2000
RUNS = 40
NODES = ["first", "second", "third"]


def test_long_history_in_memory(observation):
    """As below."""
    check_long_history(observation, "memory:")


def test_long_history(observation, database):
    """A history of 2,000 checkpoints is one span with a few phases, which count every call of the serializer."""
    check_long_history(observation, database.saver_url)


def check_long_history(observation, url):
    result = observation.run("history.py", url, CHECKPOINTS)
    assert result["items"] == CHECKPOINTS
    spans = observation.spans()
    assert len(spans.operations("save", outcome="ok")) == CHECKPOINTS
    whole, some = sorted(spans.operations("list"), key=lambda span: -span.attributes[names.COUNT])
    assert (whole.attributes[names.COUNT], some.attributes[names.COUNT]) == (CHECKPOINTS, 3)
    phases = spans.phases(whole)
    assert len(phases) <= 5
    calls = sum(phase.attributes.get("checkpoint.phase.calls", 1) for phase in phases if phase.attributes[names.PHASE] == "deserialize")
    assert calls + whole.attributes.get("checkpoint.phases.dropped", 0) == result["loads"]


def test_parallel_runs(observation):
    """The writes of parallel nodes come from worker threads that lost their context. Each is in the trace of its run."""
    result = observation.run("parallel_runs.py", RUNS)
    spans = observation.spans()
    spans.check_traces()
    assert Counter(span.name for span in spans.roots()) == {"task parallel": RUNS}
    threads = {task.trace_id: task.attributes[names.TASK_ID] for task in spans.tasks()}
    assert len(set(threads.values())) == RUNS
    appends = spans.operations("append", outcome="ok")
    assert len(appends) == result["writes"]
    assert [span for span in appends if span.attributes[names.TASK_ID] != threads[span.trace_id]] == []
    by_node = Counter((span.attributes[names.TASK_ID], span.attributes.get("checkpoint.node")) for span in appends)
    assert {key: count for key, count in by_node.items() if key[1] in NODES} == {
        (thread, node): 1 for thread in threads.values() for node in NODES
    }
