"""Every command and page calls the task of an operation the same."""

from __future__ import annotations

import time
from contextlib import nullcontext

import pytest

import ckpt_observe
from ckpt_observe.cli.tail import OperationEvent, event_line
from ckpt_observe.cli.top import TaskTable
from ckpt_observe.cli.trace_arguments import find_task
from ckpt_observe.core import Checkpointer
from ckpt_observe.errors import TraceNotFoundError
from ckpt_observe.explain import Explainer
from ckpt_observe.pictures.timeline import build_timeline
from ckpt_observe.query import ALL, OperationFilter, open_traces
from ckpt_observe.viewer import page_data


@pytest.mark.parametrize(("task", "title"), [("train", "train"), (None, "test")])
def test_one_title_everywhere(watch, state, tmp_path, task, title):
    """top, tail, why, stats, the timeline and the viewer use the name of the task; without a task, the name of the program."""
    checkpointer = Checkpointer(tmp_path / "checkpoints")
    if task is None:
        checkpointer.save("run-1", {"step": 1})
    else:
        with ckpt_observe.task(task, id="run-1"):
            checkpointer.save("run-1", {"step": 1})
    assert watch.flush(60)
    with open_traces(state) as traces:
        [save] = [operation for operation in traces.operations() if operation.kind == "operation"]
        table = TaskTable(traces)
        table.load(time.time_ns())
        titles = {
            "top": [activity.task for activity in table.tasks(time.time_ns())],
            "why": [Explainer(traces, time.time_ns()).explain(save).task],
            "tail": [event_line(OperationEvent("finished", save)).split()[4]],
            "timeline": [lane.split()[0] for lane in build_timeline([save], time.time_ns()).lanes],
            "stats": [row.task_name for row in traces.statistics().operations],
            "overview": [run.task_title for run in page_data.overview(traces).tasks],
            "history": [row.task_title for row in page_data.history(traces, ALL, "", 10).operations],
        }
        assert titles == {view: [title] for view in titles}


@pytest.mark.parametrize(("task", "title"), [("train", "train"), (None, "test")])
def test_failure_is_found_by_title(watch, state, task, title):
    """`why --task` takes the title that other commands show, and, as `traces --task`, the name of a program with tasks."""
    scope = ckpt_observe.task(task) if task else nullcontext()
    with pytest.raises(OSError), scope, ckpt_observe.checkpoint("save"):
        raise OSError
    assert watch.flush(60)
    with open_traces(state) as traces:
        explainer = Explainer(traces, time.time_ns())
        assert explainer.newest_failure().name == "save"
        for name in (title, "test"):
            assert explainer.newest_failure(find_task(traces, name)).name == "save"
        assert explainer.newest_failure(OperationFilter(task_name="other")) is None
        with pytest.raises(TraceNotFoundError):
            find_task(traces, "other")
