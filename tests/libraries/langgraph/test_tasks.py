"""Runs of graphs are tasks, named after the graph and identified by thread and run."""

from __future__ import annotations

import pytest

from ckpt_observe.semconv import attributes as names

pytestmark = pytest.mark.libraries

ERROR_ATTRIBUTES = (names.ERROR_CLASS, names.ERROR_CODE, names.ERROR_TYPE)


def check_identity(task, thread, run):
    assert task.name == "task assistant"
    assert task.attributes[names.TASK_NAME] == "assistant"
    assert task.attributes[names.TASK_ID] == thread
    assert task.attributes[names.SESSION_ID] == thread
    assert task.attributes["checkpoint.run.id"] == run


def by_start(spans):
    return sorted(spans, key=lambda span: span.start_unix_nano)


def test_interrupt_is_not_an_error(observation):
    """A run that ends in an interrupt succeeded, and the run that resumes it is another run of the same thread, linked to its save."""
    result = observation.run("tasks.py", "interrupt")
    spans = observation.spans()
    spans.check_traces()
    tasks = by_start(spans.tasks())
    assert len(tasks) == 2
    for task, run in zip(tasks, result["runs"], strict=True):
        check_identity(task, result["thread"], run)
    assert {span.attributes[names.OUTCOME] for span in spans} == {"ok"}
    assert [span.name for span in spans if span.status == "error" or any(name in span.attributes for name in ERROR_ATTRIBUTES)] == []
    assert spans.operations("append", reason="interrupt")
    first, resumed = by_start(spans.operations("load"))
    assert first.attributes["checkpoint.found"] is False
    source = spans.operation("save", id=resumed.attributes[names.ID])
    assert resumed.attributes[names.SOURCE_SPAN] == source.span_id
    assert source.trace_id == tasks[0].trace_id != resumed.trace_id


def test_operations_have_the_identity_of_their_run(observation):
    """Also the operations say to which thread, session and run they belong."""
    result = observation.run("tasks.py", "failing_node")
    for span in observation.spans().operations():
        assert span.attributes[names.TASK_NAME] == "assistant"
        assert span.attributes[names.TASK_ID] == span.attributes[names.SESSION_ID] == result["thread"]
        assert span.attributes["checkpoint.run.id"] == result["runs"][0]


def test_failure_of_a_node_is_not_one_of_the_saver(observation):
    """The run fails with the node's exception; the checkpoint operations succeeded."""
    result = observation.run("tasks.py", "failing_node")
    spans = observation.spans()
    [task] = spans.tasks()
    check_identity(task, result["thread"], result["runs"][0])
    assert task.attributes[names.OUTCOME] == "error"
    assert task.attributes[names.ERROR_TYPE] == "LookupError"
    assert {span.attributes[names.OUTCOME] for span in spans.operations()} == {"ok"}
    assert spans.operations("append", reason="error")
    [explanation] = observation.explain(task.trace_id)
    assert (explanation["operation"], explanation["span_id"]) == ("task", task.span_id)
    assert "exception came from the node node." in str(explanation["sentences"])


@pytest.mark.parametrize("kind", ["within_span", "within_span_async"])
def test_run_is_within_the_span_of_the_program(observation, kind):
    """If the program has a span of its own, the run is its child."""
    result = observation.run("tasks.py", kind)
    spans = observation.spans()
    [task] = spans.tasks()
    assert (task.trace_id, task.parent_span_id) == (result["trace"], result["span"])
    assert {span.trace_id for span in spans} == {result["trace"]}


def test_simultaneous_async_runs(observation):
    """Runs that share an event loop have their own traces; a run whose consumer stops early did not fail."""
    result = observation.run("tasks.py", "async_stream")
    spans = observation.spans()
    spans.check_traces()
    tasks = {task.attributes[names.TASK_ID]: task for task in spans.tasks()}
    assert sorted(tasks) == sorted(result["threads"])
    for thread, run in zip(result["threads"], result["runs"], strict=True):
        check_identity(tasks[thread], thread, run)
        assert {span.attributes[names.TASK_ID] for span in spans.operations() if span.trace_id == tasks[thread].trace_id} == {thread}
        assert tasks[thread].status != "error"


def test_no_id_is_a_metric_label(observation, tmp_path):
    """Threads, runs and checkpoints are unlimited in number, so none of their IDs is in the metrics."""
    result = observation.run(
        "tasks.py",
        "interrupt",
        CKPT_OBSERVE_EXPORTERS="local,prometheus",
        CKPT_OBSERVE_METRICS_TEXTFILE=tmp_path / "metrics.prom",
    )
    metrics = (tmp_path / "metrics.prom").read_text()
    assert 'system="langgraph"' in metrics
    assert 'task="assistant"' in metrics
    spans = observation.spans()
    ids = {span.attributes[name] for span in spans.operations() for name in (names.ID, "checkpoint.writer.id") if name in span.attributes}
    assert ids
    assert [value for value in (result["thread"], *result["runs"], *ids) if value in metrics] == []


def test_idle_thread_is_not_stale(observation):
    """Between two runs, the last save gets older while the process lives. No task is running then, so its age raises no alert."""
    within, between = observation.run("tasks.py", "idle", CKPT_OBSERVE_EXPORTERS="local,prometheus", CKPT_OBSERVE_METRICS_TEXTFILE="m.prom")
    assert within == {"running": 1.0, "has_start": True, "saved": True}
    assert between == {"running": 0.0, "has_start": False, "saved": True}
