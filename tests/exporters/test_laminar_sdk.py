"""With the real `lmnr` SDK: our spans in its traces. Each program runs alone, for `Laminar.initialize()` is for a whole process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap

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
Laminar.initialize(base_url="http://127.0.0.1", http_port=int(os.environ["PORT"]), force_http=True, instruments=set())
def save():
    with ckpt_observe.checkpoint("save") as operation, operation.phase("write"): pass
"""


@pytest.fixture
def laminar():
    with LaminarServer() as running:
        yield running


def run(laminar, tmp_path, code, **environ):
    own = {
        "PORT": str(laminar.port),
        "LMNR_PROJECT_API_KEY": laminar.key,
        "CKPT_OBSERVE_DIR": str(tmp_path),
        "LMNR_DISABLE_TRACING": "false",
    }
    program = START + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **own, **environ}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ckpt_observe" not in done.stderr, done.stderr


def test_spans_nest_in_its_traces_once(laminar, tmp_path):
    """In `@observe`, also in a thread: beneath its span, with its path, session and user, each stored once and shown."""
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


def test_own_task_is_a_trace_of_its_own(laminar, tmp_path):
    """Outside of its spans a task is a root, and goes through its provider all the same."""
    run(laminar, tmp_path, "with ckpt_observe.task('train', session='s2'): save()")
    assert outline(laminar.rows) == "task train\n  checkpoint.save\n    checkpoint.write"
    assert laminar.complaints() == []


def test_otlp_beside_it_gets_them_too(laminar, tmp_path, collector):
    """Laminar's provider sends to Laminar; an OTLP endpoint in the environment gets the spans from us, without Laminar's names."""
    run(laminar, tmp_path, "save()", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    assert outline(laminar.rows) == outline(collector.spans.values()) == "checkpoint.save\n  checkpoint.write"
    assert not [name for span in collector.spans.values() for name in span.attributes if name.startswith("lmnr")]


def test_its_sdk_and_our_own_exporter(laminar, tmp_path):
    """Where `laminar` is named, our exporter sends beneath its SDK's spans, and the page has nothing to complain of."""
    run(laminar, tmp_path, "observe(name='step', session_id='s1')(save)()", CKPT_OBSERVE_EXPORTERS="laminar", LMNR_BASE_URL=laminar.url)
    assert outline(laminar.rows) == "step\n  checkpoint.save\n    checkpoint.write"
    assert laminar.complaints() == []
