"""Spans as Phoenix and MLflow show them: each has a kind, an input and an output, and none of them contains content of a state."""

from __future__ import annotations

import json

import collectors
import pytest

import ckpt_observe
from ckpt_observe import config
from ckpt_observe.core import Checkpointer
from ckpt_observe.exporters.laminar_shape import shape as laminar_shape
from ckpt_observe.exporters.openinference_shape import shape
from ckpt_observe.semconv import attributes as names
from ckpt_observe.semconv.openinference import INPUT, INPUT_TYPE, OUTPUT, OUTPUT_TYPE, SPAN_KIND
from ckpt_observe.span import SpanEvent
from ckpt_observe.testing.spans import make_span, make_tree

COUNTS = {
    names.TASK_NAME: "train",
    names.TASK_ID: "run-42",
    names.TOTAL_STEPS: 100,
    names.OUTCOME: "ok",
    names.TASK_OPERATIONS: ["save", "load", "copy"],
    names.TASK_COUNTS: [12, 3, 2],
    names.TASK_FAILURES: [1, 0, 0],
    names.TASK_STORED: 146_000,
}
FAILURE = SpanEvent("exception", 5, {"exception.type": "OSError", "exception.message": "no\nspace"})


def read(span):
    """Return input and output of a span."""
    attributes = shape(span).attributes
    assert attributes[INPUT_TYPE] == attributes[OUTPUT_TYPE] == "application/json"
    return json.loads(attributes[INPUT]), json.loads(attributes[OUTPUT])


def test_every_span_has_a_kind_and_is_not_empty():
    """Operations are tools, tasks and phases are chains: no other kind is needed, and none is unknown, which Phoenix shows in grey."""
    spans = make_tree(operations=("save", "load"), phases=("write",))
    assert [shape(span).attributes[SPAN_KIND] for span in spans] == ["CHAIN", "TOOL", "CHAIN", "TOOL", "CHAIN"]
    assert all(all(read(span)) for span in spans)


def test_operation():
    """The input identifies the checkpoint, the output says what became of it, with a line for people first."""
    attributes = {
        names.OPERATION: "save",
        names.ID: "step-3",
        names.STEP: 3,
        names.SYSTEM: "reference",
        names.OUTCOME: "ok",
        names.SIZE_SERIALIZED: 12_200,
        names.SIZE_STORED: 973,
        names.RATIO: float("inf"),
        names.STATE_KEYS: 2,
    }
    sent, result = read(make_span(1, "checkpoint.save", attributes=attributes))
    assert sent == {"id": "step-3", "step": 3, "system": "reference"}
    assert result == {
        "summary": "step 3 · 12.2 kB → 973 B",
        "outcome": "ok",
        "size.serialized": 12_200,
        "size.stored": 973,
        "compression.ratio": "inf",
    }
    assert next(iter(result)) == "summary"


def test_failed_operation():
    """The output of a failed operation has the error in one line, and its class and phase."""
    attributes = {names.OPERATION: "save", names.OUTCOME: "error", names.ERROR_CLASS: "storage", names.ERROR_PHASE: "write"}
    _, result = read(make_span(1, "checkpoint.save", status="error", attributes=attributes, events=(FAILURE,)))
    assert result == {"summary": "OSError: no space", "outcome": "error", "error.class": "storage", "error.phase": "write"}


def test_phase():
    """A phase has its name and its bytes."""
    attributes = {names.PHASE: "compress", names.PHASE_BYTES_IN: 900, names.PHASE_BYTES_OUT: 100, names.OUTCOME: "ok"}
    assert read(make_span(1, "checkpoint.compress", attributes=attributes)) == (
        {"phase": "compress", "phase.bytes_in": 900},
        {"outcome": "ok", "phase.bytes_out": 100},
    )


TASK_OUTPUT = {
    "summary": "12 saves (1 failed), 3 loads, 2 copies · 146 kB",
    "outcome": "ok",
    "operations": {"save": 12, "load": 3, "copy": 2},
    "failures": {"save": 1},
    "stored": 146_000,
}


def test_task():
    """A task has what the program declared, and the number of its operations in words and as numbers."""
    assert read(make_span(1, "task train", attributes=COUNTS)) == (
        {"task.name": "train", "task.id": "run-42", "task.total_steps": 100},
        TASK_OUTPUT,
    )


def test_task_in_laminar():
    """Laminar gets the same input and output of a task."""
    attributes = laminar_shape(make_span(1, "task train", attributes=COUNTS)).attributes
    assert json.loads(attributes["lmnr.span.input"]) == {"task.name": "train", "task.id": "run-42", "task.total_steps": 100}
    assert json.loads(attributes["lmnr.span.output"]) == TASK_OUTPUT


@pytest.mark.parametrize(
    ("attributes", "summary"),
    [
        ({names.TASK_OPERATIONS: ["save"], names.TASK_COUNTS: [1], names.TASK_FAILURES: [1], names.TASK_STORED: 0}, "1 save (1 failed) · OSError: no space"),
        ({}, "OSError: no space"),
        ({names.TASK_OPERATIONS: "save", names.TASK_COUNTS: 1}, "OSError: no space"),
    ],
)  # fmt: skip
def test_failed_task(attributes, summary):
    """The summary of a failed task ends with the error; counts that are missing or not ours are left out."""
    _, result = read(make_span(1, "task train", status="error", attributes=attributes, events=(FAILURE,)))
    assert result["summary"] == summary


def test_attributes_of_the_program_are_kept():
    """A kind or an output that the program has set itself is not replaced."""
    span = make_span(1, "task agent", attributes={SPAN_KIND: "AGENT", OUTPUT: "done", OUTPUT_TYPE: "text/plain"})
    attributes = shape(span).attributes
    assert (attributes[SPAN_KIND], attributes[OUTPUT], attributes[OUTPUT_TYPE]) == ("AGENT", "done", "text/plain")


ENDPOINT, HEADERS, RESOURCE = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_RESOURCE_ATTRIBUTES"


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({ENDPOINT: "http://localhost:4318"}, False),
        ({ENDPOINT: "http://localhost:4318", HEADERS: "authorization=Bearer%20x"}, False),
        ({ENDPOINT: "http://localhost:5000", HEADERS: "x-mlflow-experiment-id=0"}, True),
        ({ENDPOINT: "http://localhost:6006"}, True),
        ({ENDPOINT: "https://phoenix.example", HEADERS: "x-project-name=a"}, True),
        ({ENDPOINT: "http://localhost:4317", RESOURCE: "openinference.project.name=a"}, True),
        ({ENDPOINT: "http://localhost:6006", "CKPT_OBSERVE_OPENINFERENCE": "false"}, False),
        ({ENDPOINT: "http://localhost:4318", "CKPT_OBSERVE_OPENINFERENCE": "true"}, True),
        ({}, False),
    ],
)
def test_servers_that_are_recognized(environ, expected):
    """Phoenix is recognized by its port or project, MLflow by its experiment. The setting overrides both."""
    assert config.read(environ).openinference is expected


def test_no_content_of_a_state_is_sent(tmp_path, state):
    """A real save and load are sent with kind, input and output, and without any value of the state."""
    with collectors.HttpCollector() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENDPOINT, server.url)
        patch.setenv("CKPT_OBSERVE_OPENINFERENCE", "true")
        watch = ckpt_observe.observe(exporters="otlp", dir=state, pages_dir=tmp_path / "pages")
        with ckpt_observe.task("train"), Checkpointer(tmp_path / "checkpoints") as checkpointer:
            checkpointer.save("run-42", {"prompt": "canary-value"}, step=1)
            checkpointer.load("run-42")
        watch.close(10)
        spans = list(server.spans.values())
        sent = b"".join(body for _, _, body in server.requests)
    assert {span.name for span in spans} >= {"task train", "checkpoint.save", "checkpoint.load", "checkpoint.write"}
    assert all({SPAN_KIND, INPUT, OUTPUT} <= span.attributes.keys() for span in spans)
    [task] = [span for span in spans if span.name == "task train"]
    assert json.loads(task.attributes[OUTPUT])["operations"] == {"load": 1, "save": 1}
    assert b"canary-value" not in sent
