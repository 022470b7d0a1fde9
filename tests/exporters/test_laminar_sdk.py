"""Our spans in traces of the real `lmnr` SDK. Each program runs in its own process, because `Laminar.initialize()` is global."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter

import pytest
from laminar_server import LaminarServer

from ckpt_observe.testing.spans import outline

pytestmark = [
    pytest.mark.libraries,
    pytest.mark.skipif(importlib.util.find_spec("lmnr") is None, reason="the extra `laminar` is not installed"),
]

START = """
import ckpt_observe.auto, os, threading
from lmnr import Laminar, observe
Laminar.initialize(os.environ.get("KEY"), base_url="http://127.0.0.1", http_port=int(os.environ["PORT"]), force_http=True, instruments=set())
def save():
    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"): pass
"""


@pytest.fixture
def laminar():
    with LaminarServer() as running:
        yield running


def run(laminar, tmp_path, code, exit_code=0, **environ):
    variables = {
        "PORT": str(laminar.port),
        "LMNR_PROJECT_API_KEY": laminar.key,
        "CKPT_OBSERVE_DIR": str(tmp_path),
        "LMNR_DISABLE_TRACING": "false",
    }
    program = START + textwrap.dedent(code)
    result = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **variables, **environ}, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == exit_code, result.stderr
    assert "ckpt_observe" not in result.stderr, result.stderr


def test_spans_are_nested_and_stored_once(laminar, tmp_path):
    """Within `@observe`, also in a thread, our spans are below its span, with its path, session and user, each stored once and shown."""
    run(
        laminar,
        tmp_path,
        """
        @observe(name="step", session_id="s1", user_id="u1")
        def step():
            save()
            thread = threading.Thread(target=save)
            thread.start()
            thread.join()
        step()
        """,
    )
    assert outline(laminar.rows) == "step\n  checkpoint.save\n    checkpoint.write\n  checkpoint.save\n    checkpoint.write"
    assert laminar.complaints() == []
    saves = [row for row in laminar.rows if row.name == "checkpoint.save"]
    assert [row.attributes["lmnr.span.path"] for row in saves] == [["step", "checkpoint.save"]] * 2
    assert {
        (row.attributes["lmnr.association.properties.session_id"], row.attributes["lmnr.association.properties.user_id"]) for row in saves
    } == {("s1", "u1")}
    assert laminar.transcript() == ["checkpoint.save", "checkpoint.save"]


def test_run_of_a_library_within_laminar_spans(laminar, tmp_path):
    """A run of a library such as LangGraph is below Laminar's span, and its saves below the run, also in a thread."""
    run(
        laminar,
        tmp_path,
        """
        from ckpt_observe.instrument.library_call import LibraryCall
        from ckpt_observe.instrument.runs import RunCall
        ids = {"checkpoint.task.name": "assistant", "checkpoint.task.id": "thread-1", "session.id": "thread-1"}
        call_run = RunCall("toy", lambda *call: ids).wrapper_for(save)
        call_save = LibraryCall("toy", "save", lambda *call: {"checkpoint.system": "toy", "checkpoint.task.id": "thread-1"}).wrapper_for(save)
        def put():
            call_save(lambda: None, None, (), {})
        def graph():
            put()
            thread = threading.Thread(target=put)
            thread.start()
            thread.join()
        observe(name="request")(lambda: call_run(graph, None, (), {}))()
        """,
    )
    assert outline(laminar.rows) == "request\n  task assistant\n    checkpoint.save\n    checkpoint.save"
    assert laminar.complaints() == []


def test_task_outside_of_laminar_spans(laminar, tmp_path):
    """Outside of Laminar's spans a task is a root and is sent to Laminar, too."""
    run(laminar, tmp_path, "with ckpt_observe.task('train', session='s2'): save()")
    assert outline(laminar.rows) == "task train\n  checkpoint.save\n    checkpoint.write"
    assert laminar.complaints() == []


def test_process_that_continues_a_trace(laminar, tmp_path):
    """With `LMNR_SPAN_CONTEXT` as the SDK writes it, a process without the SDK saves below that span, with its path, session and user."""
    child = "import ckpt_observe.auto\nwith ckpt_observe.task('train'), ckpt_observe.checkpoint('save') as save, save.phase('write'): pass"
    code = f"""
    import subprocess, sys
    @observe(name="step", session_id="s1", user_id="u1")
    def step():
        context = Laminar.serialize_span_context()
        subprocess.run([sys.executable, "-c", {child!r}], env={{**os.environ, "LMNR_SPAN_CONTEXT": context}}, check=True)
    step()
    """
    run(laminar, tmp_path, code, LMNR_BASE_URL=laminar.url)
    assert outline(laminar.rows) == "step\n  task train\n    checkpoint.save\n      checkpoint.write"
    assert laminar.complaints() == []
    [save] = [row.attributes for row in laminar.rows if row.name == "checkpoint.save"]
    assert (save["lmnr.span.path"], save["session.id"], save["user.id"]) == (["step", "task train", "checkpoint.save"], "s1", "u1")


def test_otlp_beside_laminar(laminar, tmp_path, collector):
    """One exporter sends to Laminar, the other to the configured OTLP endpoint, without Laminar's attributes."""
    run(laminar, tmp_path, "save()", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    assert outline(laminar.rows) == outline(collector.spans.values()) == "checkpoint.save\n  checkpoint.write"
    assert not [name for span in collector.spans.values() for name in span.attributes if name.startswith("lmnr")]


def test_laminar_sdk_with_our_exporter(laminar, tmp_path):
    """If the exporter `laminar` is named, it sends spans below those of the SDK, without complaints."""
    run(laminar, tmp_path, "observe(name='step', session_id='s1')(save)()", CKPT_OBSERVE_EXPORTERS="laminar", LMNR_BASE_URL=laminar.url)
    assert outline(laminar.rows) == "step\n  checkpoint.save\n    checkpoint.write"
    assert laminar.complaints() == []


@pytest.mark.parametrize("exporters", [{}, {"CKPT_OBSERVE_EXPORTERS": "provider"}])
def test_burst_loses_no_span(laminar, tmp_path, exporters):
    """A burst of 2,000 saves, 4,000 spans, arrives completely, and so does the program's own root span."""
    code = """
    @observe(name="step", session_id="s1", user_id="u1")
    def step():
        for _ in range(2000):
            save()
    step()
    from ckpt_observe import api
    api._watch.flush(60)
    """
    run(laminar, tmp_path, code, **exporters)
    assert Counter(row.name for row in laminar.rows) == {"step": 1, "checkpoint.save": 2000, "checkpoint.write": 2000}
    saves = [row.attributes for row in laminar.rows if row.name == "checkpoint.save"]
    assert {(row["lmnr.association.properties.session_id"], row["lmnr.association.properties.user_id"]) for row in saves} == {("s1", "u1")}
    assert {tuple(row["lmnr.span.path"]) for row in saves} == {("step", "checkpoint.save")}


def test_killed_program_loses_no_span(laminar, tmp_path):
    """Spans that wait for a busy server are not lost in the queue of the SDK if the program is killed: the next program delivers them."""
    killed = """
    import signal
    from ckpt_observe import api
    save()
    worker = api._watch._delivery.workers[0]
    while not (worker.retries or worker.delivered):
        api._watch.flush(0.1)
    ckpt_observe.checkpoint('save').__enter__()
    os.kill(os.getpid(), signal.SIGKILL)
    """
    laminar.otherwise = 503
    run(laminar, tmp_path, killed, exit_code=-signal.SIGKILL)
    laminar.otherwise = 200
    run(laminar, tmp_path, "save()")
    outcomes = Counter(row.attributes["checkpoint.outcome"] for row in laminar.rows if row.name == "checkpoint.save")
    assert outcomes == {"ok": 2, "interrupted": 1}


def test_key_that_only_the_program_has(laminar, tmp_path):
    """The key of `Laminar.initialize()` is used, whatever the environment contains."""
    run(laminar, tmp_path, "save()", LMNR_PROJECT_API_KEY="another", KEY=laminar.key)
    assert outline(laminar.rows) == "checkpoint.save\n  checkpoint.write"
