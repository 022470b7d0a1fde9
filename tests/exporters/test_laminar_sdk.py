"""Our spans in traces of the real `lmnr` SDK. Each program runs in its own process, because `Laminar.initialize()` is global."""

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
    assert result.returncode == 0, result.stderr
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


def test_task_outside_of_laminar_spans(laminar, tmp_path):
    """Outside of Laminar's spans a task is a root and is sent through Laminar's provider, too."""
    run(laminar, tmp_path, "with ckpt_observe.task('train', session='s2'): save()")
    assert outline(laminar.rows) == "task train\n  checkpoint.save\n    checkpoint.write"
    assert laminar.complaints() == []


def test_otlp_beside_laminar(laminar, tmp_path, collector):
    """Laminar's provider sends to Laminar; our exporter sends to the configured OTLP endpoint, without Laminar's attributes."""
    run(laminar, tmp_path, "save()", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    assert outline(laminar.rows) == outline(collector.spans.values()) == "checkpoint.save\n  checkpoint.write"
    assert not [name for span in collector.spans.values() for name in span.attributes if name.startswith("lmnr")]


def test_laminar_sdk_with_our_exporter(laminar, tmp_path):
    """If the exporter `laminar` is named, it sends spans below those of the SDK, without complaints."""
    run(laminar, tmp_path, "observe(name='step', session_id='s1')(save)()", CKPT_OBSERVE_EXPORTERS="laminar", LMNR_BASE_URL=laminar.url)
    assert outline(laminar.rows) == "step\n  checkpoint.save\n    checkpoint.write"
    assert laminar.complaints() == []
