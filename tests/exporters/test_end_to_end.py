"""From an operation to the servers: recording, journal, delivery, exporters."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from laminar_server import LaminarServer
from opentelemetry.sdk.trace import TracerProvider

import ckpt_observe
from ckpt_observe import config, wiring
from ckpt_observe.core import Checkpointer
from ckpt_observe.exporters import laminar as laminar_exporter
from ckpt_observe.testing.spans import outline
from tests.delivery.conftest import until


@pytest.fixture
def laminar(monkeypatch):
    monkeypatch.setattr(laminar_exporter, "SETTLE_SECONDS", 0.0)  # the stand-in has no queue
    with LaminarServer() as running:
        monkeypatch.setenv("LMNR_PROJECT_API_KEY", running.key)
        monkeypatch.setenv("LMNR_BASE_URL", running.url)
        yield running


@pytest.fixture
def watch(tmp_path, collector, laminar, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    watch = ckpt_observe.observe(exporters="otlp,laminar", dir=tmp_path, service="test")
    yield watch
    watch.close()


TREE = """\
task agent
  checkpoint.restore
    checkpoint.read
    checkpoint.load
      checkpoint.deserialize
  checkpoint.save
    checkpoint.write"""


def run():
    """Run a task with a nested operation, phases, and a save that fails."""
    with ckpt_observe.task("agent", id="a-1", session="s1", user="u1"):
        with ckpt_observe.checkpoint("restore") as restore:
            with restore.phase("read"):
                pass
            with ckpt_observe.checkpoint("load") as load, load.phase("deserialize"):
                pass
        with pytest.raises(OSError), ckpt_observe.checkpoint("save") as save, save.phase("write"):
            raise OSError(28, "No space left on device")


def test_same_tree_everywhere(watch, collector, laminar):
    """OTLP and Laminar get the same tree, without complaints of Laminar's page."""
    run()
    assert watch.flush(60)
    assert outline(collector.spans.values()) == TREE
    assert outline(laminar.rows) == TREE
    assert laminar.complaints() == []
    assert laminar.red() == ["checkpoint.write", "checkpoint.save"]
    assert {
        row.attributes["lmnr.association.properties.session_id"] for row in laminar.rows if "checkpoint.phase" not in row.attributes
    } == {"s1"}


def test_spans_of_a_running_task_have_their_path(watch, laminar):
    """Nested operations and phases have their complete path, so that Laminar shows them below a running task."""
    with ckpt_observe.task("outer"), ckpt_observe.task("agent"):
        with (
            ckpt_observe.checkpoint("restore") as restore,
            restore.phase("apply"),
            ckpt_observe.checkpoint("load") as load,
            load.phase("read"),
        ):
            pass
        assert watch.flush(60)
        paths = {row.name: row.attributes["lmnr.span.path"] for row in laminar.rows}
        assert paths["checkpoint.read"] == [
            "task outer",
            "task agent",
            "checkpoint.restore",
            "checkpoint.apply",
            "checkpoint.load",
            "checkpoint.read",
        ]
        assert paths["checkpoint.restore"] == ["task outer", "task agent", "checkpoint.restore"]
        assert laminar.complaints() == []


def test_ancestors_are_not_sent_as_attributes(watch, collector):
    """What only Laminar needs is not sent to other servers."""
    run()
    assert watch.flush(60)
    assert not [name for span in collector.spans.values() for name in span.attributes if "ancestors" in name or name.startswith("lmnr")]


def test_limits_hold_for_servers(tmp_path, collector, laminar, monkeypatch, stored_spans):
    """Every server gets texts and numbers of attributes within the limits, as of spans of the SDK. The local store has everything."""
    for variable, value in (
        ("ATTRIBUTE_VALUE_LENGTH_LIMIT", "5"),
        ("SPAN_ATTRIBUTE_COUNT_LIMIT", "9"),
        ("EXPORTER_OTLP_ENDPOINT", collector.url),
    ):
        monkeypatch.setenv(f"OTEL_{variable}", value)
    attributes = {"mine": "x" * 50, **{f"number-{number}": number for number in range(50)}}
    watch = ckpt_observe.observe(exporters="otlp,laminar,local", dir=tmp_path / "state")
    with ckpt_observe.checkpoint("save", attributes=attributes):
        pass
    assert watch.close(30)
    theirs = TracerProvider(shutdown_on_exit=False).get_tracer("theirs").start_span("save", attributes={"mine": "x" * 50})
    [sent], [shown], [stored] = collector.spans.values(), laminar.rows, stored_spans()
    assert sent.attributes["mine"] == shown.attributes["mine"] == theirs.attributes["mine"]
    assert len(sent.attributes) == 9
    assert len(sent.attributes.keys() & attributes.keys()) == len(shown.attributes.keys() & attributes.keys()) < 9
    assert stored.attributes.items() >= attributes.items()


def test_outage_neither_loses_nor_duplicates_spans(watch, collector, laminar):
    """Servers that are down, then cut connections, then work again have every span once."""
    collector.otherwise = laminar.otherwise = 503
    for _ in range(20):
        run()
    assert not watch.flush(timeout=0.5)
    assert collector.spans == {}
    laminar.otherwise = collector.otherwise = 200
    laminar.answers.append("cut")
    collector.answers.append("cut")
    for _ in range(60):
        if watch.flush(timeout=1.0):
            break
    assert len(collector.spans) == len(laminar.rows) == 20 * len(TREE.splitlines())
    assert laminar.complaints() == []


PATIENT = "from ckpt_observe import api; api.EXIT_TIMEOUT = 120.0; "
"""Lets the exit of a program wait for a server that answers, on a busy machine longer than the usual two seconds."""


def python(code, **environ):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_records_of_a_killed_process_are_delivered(tmp_path, collector, laminar, monkeypatch):
    """An operation cut short by `kill -9` arrives at both servers once, as interrupted, in its trace."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    killed = python(
        """
        import ckpt_observe, os, signal
        watch = ckpt_observe.observe()
        with ckpt_observe.task("agent"):
            with ckpt_observe.checkpoint("save"): pass
            watch.flush(60)
            with ckpt_observe.checkpoint("save") as save, save.phase("write"):
                os.kill(os.getpid(), signal.SIGKILL)
        """,
        CKPT_OBSERVE_DIR=str(tmp_path),
        CKPT_OBSERVE_EXPORTERS="otlp,laminar",
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(laminar.rows) == 1
    wiring.deliver_dead(config.read(exporters="otlp,laminar", dir=tmp_path), 60)
    for spans in (list(collector.spans.values()), laminar.rows):
        assert outline(spans) == "task agent\n  checkpoint.save\n  checkpoint.save\n    checkpoint.write"
        assert sorted(span.attributes["checkpoint.outcome"] for span in spans) == ["interrupted", "interrupted", "interrupted", "ok"]
    assert laminar.complaints() == []
    assert sorted(laminar.red()) == ["checkpoint.save", "checkpoint.write", "task agent"]


def test_retention_after_a_save_is_not_in_laminars_transcript(watch, laminar, tmp_path):
    """A prune after a save has no line of its own, in a task and below a span of the program; a prune that the program calls has one."""
    with Checkpointer(tmp_path / "store", keep_last=1) as checkpointer:
        for scope in (ckpt_observe.task("agent"), TracerProvider().get_tracer("host").start_as_current_span("host")):
            with scope:
                for step in range(2):
                    checkpointer.save("run-1", {"step": step}, step=step)
        checkpointer.prune("run-1")
    assert watch.flush(60)
    assert [row.name for row in laminar.rows].count("checkpoint.prune") == 4
    assert sorted(laminar.transcript()) == ["checkpoint.prune", *["checkpoint.save"] * 4]


def test_process_that_knows_only_its_parent(watch, laminar, tmp_path):
    """A child under `TRACEPARENT` that begins the task again, as docs/processes.md says, neither renames the trace nor hides its operations."""
    child = f"""
        {PATIENT}import ckpt_observe
        ckpt_observe.observe()
        with ckpt_observe.task("agent"), ckpt_observe.checkpoint("save") as save, save.phase("write"): pass
        """
    with ckpt_observe.task("agent") as task:
        environ = {"TRACEPARENT": task.traceparent(), "CKPT_OBSERVE_DIR": str(tmp_path / "child"), "CKPT_OBSERVE_EXPORTERS": "laminar"}
        done = python(child, OTEL_SERVICE_NAME="test", **environ)
        assert (done.returncode, done.stderr) == (0, "")
        assert list(laminar.trace_names.values()) == ["task agent"]
        assert laminar.transcript() == ["checkpoint.save"]
    assert watch.flush(60)
    assert outline(laminar.rows) == "task agent\n  task agent\n    checkpoint.save\n      checkpoint.write"
    assert (list(laminar.trace_names.values()), laminar.complaints()) == (["task agent"], [])


def test_process_without_a_task_below_a_running_one(watch, laminar, tmp_path):
    """A child under `TRACEPARENT` that begins no task finds the name of the trace while its parent runs, and keeps it when that has ended."""
    child = """
        import ckpt_observe, sys
        watch = ckpt_observe.observe()
        for _ in range(2):
            with ckpt_observe.checkpoint("save") as save, save.phase("write"): pass
            assert watch.flush(60)
            print("saved", flush=True)
            sys.stdin.readline()
        """
    command = [sys.executable, "-c", textwrap.dedent(child)]
    settings = {"CKPT_OBSERVE_DIR": str(tmp_path), "CKPT_OBSERVE_EXPORTERS": "laminar", "OTEL_SERVICE_NAME": "test"}
    with contextlib.ExitStack() as stack:
        with ckpt_observe.task("agent") as task:
            environ = {**os.environ, **settings, "TRACEPARENT": task.traceparent()}
            begun = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            process = stack.enter_context(begun)
            assert process.stdout.readline() == "saved\n"
            assert [row.name for row in laminar.rows] == ["checkpoint.write", "checkpoint.save"]
            assert list(laminar.trace_names.values()) == ["task agent"]
        assert watch.flush()
        process.communicate("\n\n", timeout=60)
    assert [row.name for row in laminar.rows].count("checkpoint.save") == 2
    assert (list(laminar.trace_names.values()), laminar.complaints()) == (["task agent"], [])


def test_killed_child_does_not_rename_the_trace(tmp_path, laminar):
    """What a killed child without a task left arrives last, from a process that did not see the task. The local store knows its name."""
    variables = {"CKPT_OBSERVE_DIR": str(tmp_path), "CKPT_OBSERVE_EXPORTERS": "laminar,local"}
    start = "import ckpt_observe, os, signal; watch = ckpt_observe.observe()\n"
    parent = start + "with ckpt_observe.task('agent') as task: print(task.traceparent())\nwatch.close(60)"
    traceparent = python(parent, **variables).stdout.strip()
    child = start + "with ckpt_observe.checkpoint('save'), ckpt_observe.phase('write'): os.kill(os.getpid(), signal.SIGKILL)"
    assert python(child, TRACEPARENT=traceparent, **variables).returncode == -signal.SIGKILL
    wiring.deliver_dead(config.read(exporters="laminar,local", dir=tmp_path), 60)
    assert outline(laminar.rows) == "task agent\n  checkpoint.save\n    checkpoint.write"
    assert (list(laminar.trace_names.values()), laminar.complaints()) == (["task agent"], [])


@pytest.mark.faults
@pytest.mark.parametrize("has_arrived", [True, False])
def test_process_killed_while_it_sends(tmp_path, laminar, has_arrived):
    """After a kill during a request, a short program asks the server, and each span is stored once. Nothing is logged."""
    environ = {"CKPT_OBSERVE_DIR": str(tmp_path), "CKPT_OBSERVE_EXPORTERS": "laminar"}
    save = "import ckpt_observe, sys; ckpt_observe.observe(); ckpt_observe.checkpoint('save').__enter__().__exit__(None, None, None)"
    laminar.answers.append("keep and stall" if has_arrived else "stall")
    program = [sys.executable, "-c", f"{save}; sys.stdin.read()"]
    with subprocess.Popen(program, env={**os.environ, **environ}, stdin=subprocess.PIPE) as killed:
        until(lambda: laminar.requests)
        killed.kill()
    assert len(laminar.rows) == has_arrived
    [mark] = tmp_path.glob("journals/*/sending.json")
    at_once = "from ckpt_observe.exporters.laminar import LaminarExporter; LaminarExporter.settle_seconds = 3600; "
    early = python(PATIENT + at_once + save, **environ)
    assert (len(laminar.rows), laminar.queries) == (has_arrived + 1, [])  # its own; the server may not know yet what it has
    os.utime(mark, (0, 0))
    late = python(PATIENT + save, **environ)
    assert (early.stderr, late.stderr) == ("", "")
    assert (len(laminar.rows), len(laminar.queries)) == (3, 1)
    assert laminar.complaints() == []


@pytest.mark.faults
def test_processes_that_never_reached_the_server(tmp_path, laminar):
    """What processes left while the server was down is delivered by one short program, which does not ask the server."""
    save = "import ckpt_observe; watch = ckpt_observe.observe(); ckpt_observe.checkpoint('save').__enter__().__exit__(None, None, None)"
    environ = {"CKPT_OBSERVE_DIR": str(tmp_path), "CKPT_OBSERVE_EXPORTERS": "laminar"}
    laminar.otherwise = 503
    for _ in range(2):
        assert "503" in python(f"{save}\nwhile not watch._delivery.workers[0].retries: watch.flush(0.1)", **environ).stderr
    laminar.otherwise = 200
    assert python(PATIENT + save, **environ).stderr == ""
    assert (len(laminar.rows), laminar.queries) == (3, [])


def test_key_is_in_no_file(tmp_path, watch, laminar, collector):
    """No file of the state directory contains a key."""
    collector.otherwise = laminar.otherwise = 503
    run()
    assert not watch.flush(timeout=0.3)
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not [data for data in files if laminar.key.encode() in data]
    collector.otherwise = laminar.otherwise = 200


def test_provider_gets_the_last_span_of_a_program(tmp_path):
    """If a program with a provider ends right after a save, the span is handed over before the provider shuts down."""
    result = python(
        f"""
        {PATIENT}import ckpt_observe.auto, sys
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.to_json(indent=None) + "\\n")))
        trace.set_tracer_provider(provider)
        with trace.get_tracer("theirs").start_as_current_span("step"):
            with ckpt_observe.checkpoint("save"): pass
        """,
        CKPT_OBSERVE_DIR=str(tmp_path),
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1",
    )
    spans = {span["name"]: span for span in map(json.loads, result.stdout.splitlines())}
    assert result.stderr == ""
    assert spans["checkpoint.save"]["parent_id"] == spans["step"]["context"]["span_id"]
    assert spans["checkpoint.save"]["context"]["trace_id"] == spans["step"]["context"]["trace_id"]
