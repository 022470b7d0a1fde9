"""Arize Phoenix and MLflow show the tree of an agent with kinds, inputs and outputs, read back through their own APIs."""

from __future__ import annotations

import re
from pathlib import Path

import backend_spans
import pytest
from ai_pages import PageSpan
from processes import eventually

from ckpt_observe import config
from ckpt_observe.exporter_selection import build_exporters
from ckpt_observe.exporters.input_output import span_input, span_output, summary
from ckpt_observe.semconv import attributes as names
from ckpt_observe.testing.spans import make_span, make_tree

pytestmark = pytest.mark.services

PAGE = Path(__file__).parents[2] / "docs" / "phoenix.md"
TASK_OUTPUT = {"outcome": "ok", "operations": {"save": 4}, "failures": {"save": 1}}
"""What `work` counts: three saves that succeed and one that fails. The save that is killed belongs to another process."""


def run_life(run_agent, variables):
    for part in ("work", "resume"):
        run_agent(part, "otlp,local", **variables)


def expected_spans(state):
    """Return what a page must show, from the local store, which has none of the attributes for pages."""
    return sorted((expected(span) for span in backend_spans.from_local_store(state)), key=id_of)


def expected(span):
    kind = "TOOL" if names.OPERATION in span.attributes else "CHAIN"
    content = span_input(span), {**summary(span), **span_output(span)}
    return PageSpan(span.span_id, span.parent_span_id, span.name, span.status, kind, *content)


def id_of(span):
    return span.span_id


def all_spans(read, count):
    return sorted(eventually(lambda: len(spans := read()) >= count and spans, f"{count} spans have arrived"), key=id_of)


def assert_story(spans):
    """The page is neither grey nor empty, and tells what happened."""
    assert {span.kind for span in spans} == {"TOOL", "CHAIN"}
    assert all(span.input and span.output for span in spans)
    tasks = [span for span in spans if span.name == "task agent"]
    assert {task.input["task.id"] for task in tasks} == {"run-1"}
    [output] = [task.output for task in tasks if task.output.get("failures")]
    assert {key: output[key] for key in TASK_OUTPUT} == TASK_OUTPUT
    assert re.fullmatch(r"4 saves \(1 failed\) · [\d.]+ k?B", output["summary"])
    saves = [span for span in spans if span.name == "checkpoint.save"]
    assert sorted(save.output["outcome"] for save in saves) == ["error", "interrupted", "ok", "ok", "ok", "ok"]
    [failed] = [save for save in saves if save.output["outcome"] == "error"]
    assert (failed.status, failed.output["error.class"]) == ("error", "serialization")
    assert "cannot be saved as json" in failed.output["summary"]
    [killed] = [save for save in saves if save.output["outcome"] == "interrupted"]
    assert (killed.status, killed.output["error.phase"]) == ("error", "write")


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_phoenix(phoenix, run_agent, state, protocol):
    """Phoenix has the tree of the local store, with kinds, inputs and outputs, over both protocols."""
    project = f"agent-{protocol[:4]}"
    run_life(run_agent, phoenix.variables(project, protocol))
    stored = expected_spans(state)
    spans = all_spans(lambda: phoenix.spans(project), len(stored))
    assert spans == stored
    assert_story(spans)


def test_mlflow(mlflow, run_agent, state):
    """MLflow has the tree of the local store, with types, inputs and outputs; its list of traces shows the task."""
    experiment = mlflow.create_experiment("agent")
    run_life(run_agent, mlflow.variables(experiment))
    stored = expected_spans(state)
    spans = all_spans(lambda: mlflow.spans(experiment), len(stored))
    assert spans == stored
    assert_story(spans)
    traces = mlflow.traces(experiment)
    assert [trace["state"] for trace in traces] == ["OK", "OK"]
    assert {trace["trace_metadata"]["mlflow.trace.session"] for trace in traces} == {"monday", "tuesday"}
    assert all('"task.name":"agent"' in trace["request_preview"] for trace in traces)
    assert any("4 saves (1 failed)" in trace["response_preview"] for trace in traces)
    assert mlflow.links(experiment)["checkpoint.restore"] in {span.span_id for span in spans if span.name == "checkpoint.save"}


def test_pages_without_openinference(phoenix, mlflow, run_agent, state):
    """Control: without the attributes, all spans of Phoenix are of unknown kind, those of MLflow have no type, and all are empty."""
    experiment = mlflow.create_experiment("plain")
    off = {"CKPT_OBSERVE_OPENINFERENCE": "false"}
    run_agent("work", "otlp,local", **phoenix.variables("plain"), **off)
    run_agent("work", "otlp,local", **mlflow.variables(experiment), **off)
    count = len(backend_spans.from_local_store(state)) // 2
    spans = all_spans(lambda: phoenix.spans("plain"), count) + all_spans(lambda: mlflow.spans(experiment), count)
    assert {span.kind for span in spans} <= {"UNKNOWN", None}
    assert {(span.input, span.output) for span in spans} == {(None, None)}


def test_repeated_spans_are_stored_once(phoenix, mlflow):
    """A batch that is sent again after a lost answer leaves one copy of each span."""
    experiment = mlflow.create_experiment("repeated")
    resource = {"service.name": "test", "openinference.project.name": "repeated"}
    tree, last = make_tree(trace=1, resource=resource), make_span(900, "checkpoint.save", trace=2, resource=resource)
    for read, variables in (
        (lambda: phoenix.spans("repeated"), phoenix.variables("repeated")),
        (lambda: mlflow.spans(experiment), mlflow.variables(experiment)),
    ):
        [exporter] = build_exporters(config.read({**variables, "CKPT_OBSERVE_EXPORTERS": "otlp"}))
        for batch in (tree, tree, [last]):
            exporter.send(batch)
        exporter.close()
        spans = eventually(lambda read=read: last.span_id in map(id_of, spans := read()) and spans, "the last span has arrived")
        assert sorted(map(id_of, spans)) == sorted(map(id_of, [*tree, last]))


def test_filters_of_the_documentation(phoenix, run_agent):
    """Every filter of docs/phoenix.md is understood, and those for failures find the spans that failed."""
    run_agent("work", "otlp", **phoenix.variables("filters"))
    eventually(lambda: any(span.name == "task agent" for span in phoenix.spans("filters")), "the task has arrived")
    eventually(lambda: any(span.output["outcome"] == "interrupted" for span in phoenix.spans("filters")), "the killed save has arrived")
    table = PAGE.read_text(encoding="utf-8").partition("## Search")[2].partition("## Limits")[0]
    conditions = dict(re.findall(r"^\| ([^|]+) \| `([^`]+)` \|$", table, re.MULTILINE))
    matches = {purpose: phoenix.filtered("filters", condition) for purpose, condition in conditions.items()}
    assert len(matches) == 5
    assert matches["all failed operations"] == ["checkpoint.save"] * 2
    assert sorted(matches["operations whose process died"]) == ["checkpoint.save", "checkpoint.write"]
